//! tuning
use replay::experiment::*;
use replay::policy::kvroute::{Kvroute, Setup};
use replay::trace::Trace;
use std::path::Path;

fn main() -> anyhow::Result<()> {
    // replay hosts gateways workers peers seeds traces(,) config...
    let args: Vec<String> = std::env::args().skip(1).collect();
    let n = |i: usize, d: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(d);
    let (hosts, gateways, workers, peers, seeds) =
        (n(0, 16) as usize, n(1, 1) as usize, n(2, 1) as usize, n(3, 0), n(4, 2));
    let only: Vec<&str> = args.get(5).map_or(vec![], |a| a.split(',').collect());
    let mut traces = Trace::read_all(Path::new("/work/shared/traces"))?;
    traces.retain(|t| only.is_empty() || only.iter().any(|o| *o == "all" || t.name.contains(o)));
    let mut scenario = Scenario::of(hosts, seeds);
    scenario.gateways = gateways;
    let subjects = subjects(&traces, &scenario.hosts);
    let mut contenders = vec![];
    let configs: Vec<String> = if args.len() > 6 { args[6..].to_vec() } else { vec!["{}".into()] };
    for config in &configs {
        let value: serde_json::Value = serde_json::from_str(config)?;
        contenders.push(Contender {
            name: config.clone(),
            make: Box::new(move |place| {
                let mut setup = Setup {
                    gateways: place.gateways,
                    workers,
                    peers_ms: (peers > 0).then_some(peers),
                    seed: place.seed,
                    config: value.clone(),
                    ..Setup::default()
                };
                if let Some(o) = setup.config.as_object_mut() {
                    if let Some(b) = o.remove("bpt") {
                        setup.bytes_per_token = b.as_f64().unwrap();
                    }
                    if let Some(b) = o.remove("announced") {
                        setup.announced = b.as_bool().unwrap();
                    }
                    if let Some(b) = o.remove("told") {
                        setup.told = b.as_bool().unwrap();
                    }
                    if let Some(b) = o.remove("workers") {
                        setup.workers = b.as_u64().unwrap() as usize;
                    }
                    if let Some(b) = o.remove("peers_ms") {
                        setup.peers_ms = b.as_u64();
                    }
                }
                Box::new(Kvroute::new(&setup, place.hosts))
            }),
        });
    }
    let cells = compare(&subjects, &scenario, &contenders, |_| {});
    for (c, contender) in contenders.iter().enumerate() {
        let of = |load: usize, f: &dyn Fn(&Cell) -> f64| {
            geometric_mean(cells.iter().filter(|x| x.contender == c && x.load == load).map(f))
        };
        let mean: Vec<String> = (0..4).map(|l| format!("{:.3}", of(l, &|x| x.mean_ratio()))).collect();
        let p99: Vec<String> = (0..4).map(|l| format!("{:.3}", of(l, &|x| x.p99_ratio()))).collect();
        let hit: Vec<String> = (0..4)
            .map(|l| format!("{:.3}", of(l, &|x| x.figures.hit_rate.max(1e-9) / x.oracle.hit_rate.max(1e-9))))
            .collect();
        println!("{:50} mean {} p99 {} hit {}", contender.name, mean.join(" "), p99.join(" "), hit.join(" "));
        if std::env::var("PER").is_ok() {
            for (t, s) in subjects.iter().enumerate() {
                let r: Vec<String> = (0..4)
                    .map(|l| {
                        format!(
                            "{:.3}",
                            geometric_mean(
                                cells
                                    .iter()
                                    .filter(|x| x.contender == c && x.load == l && x.trace == t)
                                    .map(|x| x.mean_ratio())
                            )
                        )
                    })
                    .collect();
                println!("     {:25} {}", s.trace.name, r.join(" "));
            }
        }
    }
    Ok(())
}
