//! The figure of a fleet's life: a lane for each engine, the queue, and the replicas, over the same time.

use crate::svg::{Anchor, Panel, Svg, GREY, GRID, INK};
use gateway::life::site::Truth;
use gateway::life::story::{self, Beat, Event};
use gateway::life::watch::Sample;
use std::path::Path;

const WIDTH: f64 = 1_080.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 28.0;
const LANE: f64 = 27.0;

/// What kvroute can think of a host.
const LIVES: [(&str, &str); 8] = [
    ("ready", "#3fa66b"),
    ("warming", "#b7dd7a"),
    ("suspect", "#f2a65a"),
    ("unready", "#c3c9d2"),
    ("unhealthy", "#d9534f"),
    ("draining", "#6c9ef8"),
    ("sleeping", "#a58be0"),
    ("gone", "#eef0f3"),
];

/// How an engine really is.
const TRUTHS: [(&str, &str, Truth); 5] = [
    ("loading", "#9aa3af", Truth::Loading),
    ("at work", "#1f6f43", Truth::Up),
    ("hung", "#b00020", Truth::Hung),
    ("leaving", "#2457c5", Truth::Leaving),
    ("crashed", "#111111", Truth::Crashed),
];

/// Draws it.
pub fn draw(
    path: &Path,
    title: &str,
    [said, came]: [&str; 2],
    samples: &[Sample],
    events: &[Event],
) -> std::io::Result<()> {
    let seconds = samples.last().map_or(1.0, |sample| sample.at.as_secs_f64());
    let mut svg = Svg::new(WIDTH);
    svg.title((24.0, 34.0), title);
    svg.text((24.0, 55.0), Anchor::Start, 13, GREY, said);
    svg.text((24.0, 74.0), Anchor::Start, 13, GREY, came);
    svg.text((24.0, 102.0), Anchor::Start, 13, GREY, "kvroute says (broad):");
    let seen = |life: &str| {
        let mut places = samples.iter().flat_map(|sample| &sample.places);
        places.any(|place| place.life.as_ref().is_some_and(|(said, _)| said == life))
    };
    let lives: Vec<_> = LIVES.into_iter().filter(|(life, _)| seen(life)).collect();
    svg.legend((182.0, 102.0), &lives);
    svg.text((24.0, 123.0), Anchor::Start, 13, GREY, "the engine is (narrow):");
    svg.legend((182.0, 123.0), &TRUTHS.map(|(name, colour, _)| (name, colour)));

    let places = samples.first().map_or(0, |sample| sample.places.len());
    let panel = |top: f64, height: f64, most: f64| Panel {
        left: LEFT,
        top,
        width: WIDTH - LEFT - RIGHT,
        height,
        seconds,
        most,
    };
    let lanes = panel(172.0, LANE * places as f64, places as f64);
    let queue = panel(
        lanes.bottom() + 44.0,
        130.0,
        ceiling(samples, |sample| sample.waiting.unwrap_or(0.0).max(sample.running.unwrap_or(0.0))),
    );
    let replicas = panel(
        queue.bottom() + 50.0,
        100.0,
        ceiling(samples, |sample| sample.desired.unwrap_or(0.0).max(sample.ready.unwrap_or(0.0))),
    );

    let told = merged(events);
    draw_events(&mut svg, &lanes, replicas.bottom(), &told);
    draw_lanes(&mut svg, &lanes, samples);
    queue.draw(&mut svg, "requests at the engines");
    draw_queue(&mut svg, &queue, samples);
    replicas.draw(&mut svg, "replicas");
    draw_replicas(&mut svg, &replicas, samples);
    replicas.draw_time(&mut svg, "seconds");

    let top = replicas.bottom() + 68.0;
    let rows = told.len().div_ceil(2);
    for (n, (at_s, words)) in told.iter().enumerate() {
        let x = if n < rows { 34.0 } else { WIDTH / 2.0 + 10.0 };
        let y = top + 24.0 * (n % rows) as f64;
        svg.disc((x, y), n + 1);
        svg.text((x + 17.0, y + 4.5), Anchor::Start, 13, INK, &format!("{at_s:.0} s: {words}"));
    }
    svg.save(path)
}

/// Events of one kind at one time are one: "engines 3, 4, 5 and 6 are added ..".
fn merged(events: &[Event]) -> Vec<(f64, String)> {
    let mut groups: Vec<Vec<&Event>> = Vec::new();
    for event in events {
        match groups.last_mut() {
            Some(group) if group[0].at_s == event.at_s && group[0].beat == event.beat => group.push(event),
            _ => groups.push(vec![event]),
        }
    }
    let words = |group: Vec<&Event>| match (group.as_slice(), group[0].beat) {
        ([first, .., last], Beat::Launch) => {
            format!("{} to {} are added and load", story::name(first.place), last.place + 1)
        }
        _ => group.iter().map(|event| event.words()).collect::<Vec<_>>().join(", "),
    };
    groups.into_iter().map(|group| (group[0].at_s, words(group))).collect()
}

fn draw_events(svg: &mut Svg, lanes: &Panel, bottom: f64, told: &[(f64, String)]) {
    let (mut last, mut raised) = (f64::MIN, false);
    for (n, (at_s, _)) in told.iter().enumerate() {
        let x = lanes.x(*at_s);
        // Two that stand close are at different heights.
        raised = x - last < 19.0 && !raised;
        last = x;
        svg.line([x, lanes.top - 4.0, x, bottom], "#9ca3af", "2 3");
        svg.disc((x, lanes.top - if raised { 27.0 } else { 11.0 }), n + 1);
    }
}

fn draw_lanes(svg: &mut Svg, lanes: &Panel, samples: &[Sample]) {
    let places = samples.first().map_or(0, |sample| sample.places.len());
    for place in 0..places {
        let top = lanes.top + LANE * place as f64;
        svg.text((LEFT - 8.0, top + 18.0), Anchor::End, 13, INK, &story::name(place));
        svg.line([lanes.left, top + LANE, lanes.left + lanes.width, top + LANE], GRID, "");
        let life = |sample: &Sample| {
            let (said, _) = sample.places[place].life.as_ref()?;
            LIVES.iter().find(|(name, _)| name == said).map(|(_, colour)| *colour)
        };
        draw_spans(svg, lanes, samples, (top + 4.0, 13.0), life);
        let truth = |sample: &Sample| {
            let is = sample.places[place].truth;
            TRUTHS.iter().find(|(_, _, truth)| *truth == is).map(|(_, colour, _)| *colour)
        };
        draw_spans(svg, lanes, samples, (top + 18.5, 4.5), truth);
    }
}

/// Bars from each sample to the next, as few as there are changes.
fn draw_spans<'a>(
    svg: &mut Svg,
    lanes: &Panel,
    samples: &[Sample],
    (top, height): (f64, f64),
    colour: impl Fn(&Sample) -> Option<&'a str>,
) {
    let mut from = 0;
    for at in 1..=samples.len() {
        let ended = at == samples.len() || colour(&samples[at]) != colour(&samples[from]);
        if !ended {
            continue;
        }
        let end = samples.get(at).or(samples.last()).map_or(0.0, |sample| sample.at.as_secs_f64());
        if let Some(fill) = colour(&samples[from]) {
            let (x, right) = (lanes.x(samples[from].at.as_secs_f64()), lanes.x(end));
            svg.rect([x, top, right - x, height], fill);
        }
        from = at;
    }
}

fn draw_queue(svg: &mut Svg, panel: &Panel, samples: &[Sample]) {
    let waiting = panel.points(&over_time(samples, |sample| sample.waiting));
    svg.area(&waiting, panel.bottom(), "#d9534f");
    svg.path(&waiting, "#d9534f", "");
    svg.path(&panel.points(&over_time(samples, |sample| sample.running)), "#3b6fd4", "");
    svg.legend((panel.left + 200.0, panel.top - 9.0), &[("waiting", "#d9534f"), ("running", "#3b6fd4")]);
}

fn draw_replicas(svg: &mut Svg, panel: &Panel, samples: &[Sample]) {
    svg.path(&panel.steps(&over_time(samples, |sample| sample.ready)), "#3fa66b", "");
    let desired = over_time(samples, |sample| sample.desired);
    svg.path(&panel.steps(&desired), "#8a4fbf", "6 3");
    let mut entries = vec![("take requests", "#3fa66b")];
    if !desired.is_empty() {
        entries.insert(0, ("desired", "#8a4fbf"));
    }
    svg.legend((panel.left + 200.0, panel.top - 9.0), &entries);
}

fn over_time(samples: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> Vec<(f64, f64)> {
    samples.iter().filter_map(|sample| Some((sample.at.as_secs_f64(), value(sample)?))).collect()
}

/// A little more than the most.
fn ceiling(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    (samples.iter().map(value).fold(3.0, f64::max) * 1.08).ceil()
}
