//! The manifests in `envoy/kubernetes`: do their numbers fit together, do the names exist, do the commands work?
//! (`scripts/manifests` holds them against the schemas of Kubernetes.)

use fleet::{EngineOptions, Fault, Fleet};
use gateway::{client, repository};
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

fn directory() -> PathBuf {
    repository().join("envoy/kubernetes")
}

fn text(name: &str) -> String {
    fs::read_to_string(directory().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The documents of one file.
fn documents(name: &str) -> Vec<Value> {
    let text = text(name);
    let read = |document| serde_yaml_ng::from_str(document).unwrap_or_else(|error| panic!("{name}: {error}"));
    text.split("\n---\n").map(read).collect()
}

/// Every file with manifests.
fn files() -> Vec<String> {
    let names =
        fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".yaml")).collect()
}

/// The document of a kind in a file.
fn the(kind: &str, name: &str) -> Value {
    let found = documents(name).into_iter().find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("{name} has no {kind}"))
}

fn container() -> Value {
    the("Deployment", "vllm.yaml")["spec"]["template"]["spec"]["containers"][0].clone()
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a whole number, not {value}"))
}

/// The last argument of a command, where that is a script.
fn script(command: &Value) -> String {
    let words = command.as_array().expect("a command");
    words.last().and_then(Value::as_str).expect("a script").to_owned()
}

#[test]
fn every_file_is_yaml_and_named_in_the_readme_and_every_object_says_what_it_is() {
    let readme = text("README.md");
    let files = files();
    assert!(files.len() >= 8, "{files:?}");
    for name in files {
        assert!(readme.contains(&format!("({name})")), "README.md does not link {name}");
        for document in documents(&name) {
            if name == "skypilot.yaml" {
                continue;
            }
            for key in ["/apiVersion", "/kind", "/metadata/name"] {
                assert!(document.pointer(key).is_some_and(Value::is_string), "{name}: no {key}: {document}");
            }
        }
    }
}

#[test]
fn what_goes_has_the_time_that_it_is_promised() {
    let pod = &the("Deployment", "vllm.yaml")["spec"]["template"]["spec"];
    let hook = script(&container()["lifecycle"]["preStop"]["exec"]["command"]);
    let deadline: u64 = hook.rsplit(' ').next().and_then(|last| last.parse().ok()).expect("ends in seconds");
    assert!(hook.contains("/kvroute/prestop \"$KVROUTE_GATEWAYS\" \"$POD_IP:8000\""), "{hook}");
    let args = container()["args"].to_string();
    let after = args.split("--shutdown-timeout=").nth(1).expect("vLLM's own time");
    let own: u64 = after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
    // The script looks once a second, and a gateway that hangs holds it up for 5 s.
    let gateways = container()["env"].to_string().matches("http://gateway-").count() as u64;
    assert!(gateways >= 2);
    let grace = whole(&pod["terminationGracePeriodSeconds"]);
    assert!(grace >= deadline + 5 * gateways + 1 + own, "{grace} s for {deadline} + {own}");
    let comment = text("vllm.yaml");
    for number in [deadline, own, grace] {
        assert!(
            comment.lines().any(|line| line.starts_with('#') && line.contains(&number.to_string())),
            "{number}"
        );
    }
    // One goes when the one before is gone.
    for file in ["hpa.yaml", "keda-prometheus.yaml", "keda-metrics-api.yaml"] {
        let policy = &behavior(file)["scaleDown"]["policies"][0];
        assert_eq!(whole(&policy["value"]), 1, "{file}");
        assert!(whole(&policy["periodSeconds"]) >= deadline + own, "{file}");
    }
}

#[test]
fn what_comes_has_the_time_to_load() {
    let probes = container();
    let startup = &probes["startupProbe"];
    let loads = whole(&startup["periodSeconds"]) * whole(&startup["failureThreshold"]);
    assert!(loads >= 600, "{loads}");
    let rollout = whole(&the("Deployment", "vllm.yaml")["spec"]["progressDeadlineSeconds"]);
    assert!(rollout > loads, "{rollout} for {loads}");
    for probe in [startup, &probes["readinessProbe"]] {
        let command = script(&probe["exec"]["command"]);
        let after = command.split("--max-time ").nth(1).expect("a bound");
        let gives_up: u64 = after.split(' ').next().unwrap().parse().unwrap();
        assert!(gives_up < whole(&probe["timeoutSeconds"]), "curl gives up before it is killed");
        assert!(!command.contains("/health"));
    }
    assert_eq!(the("Deployment", "vllm.yaml")["spec"].get("replicas"), None, "they are the scaler's");
}

fn behavior(file: &str) -> Value {
    if file == "hpa.yaml" {
        the("HorizontalPodAutoscaler", file)["spec"]["behavior"].clone()
    } else {
        let object = the("ScaledObject", file);
        object["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"].clone()
    }
}

#[test]
fn the_three_scalers_say_the_same() {
    let hpa = the("HorizontalPodAutoscaler", "hpa.yaml")["spec"].clone();
    let mut targets = Vec::new();
    for metric in hpa["metrics"].as_array().expect("metrics") {
        let external = &metric["external"];
        assert_eq!(external["target"]["type"], "AverageValue");
        targets.push((external["metric"]["name"].clone(), external["target"]["averageValue"].clone()));
    }
    assert_eq!(
        targets,
        [
            (json!("kvroute_signals_waiting_requests"), json!("5")),
            (json!("kvroute_signals_desired_replicas"), json!("1")),
        ]
    );
    assert_eq!(hpa["scaleTargetRef"]["name"], "vllm");
    assert_eq!(behavior("hpa.yaml")["scaleDown"]["stabilizationWindowSeconds"], 300);
    assert_eq!(behavior("hpa.yaml")["scaleUp"]["stabilizationWindowSeconds"], 0);
    for (file, target) in [("keda-prometheus.yaml", "threshold"), ("keda-metrics-api.yaml", "targetValue")] {
        let spec = the("ScaledObject", file)["spec"].clone();
        let known =
            ["scaleTargetRef", "minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers"];
        let keys: BTreeSet<&str> = spec.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, known.into(), "{file}");
        assert_eq!(spec["scaleTargetRef"]["name"], "vllm");
        assert_eq!(
            (&spec["minReplicaCount"], &spec["maxReplicaCount"]),
            (&hpa["minReplicas"], &hpa["maxReplicas"])
        );
        let fallback = whole(&spec["fallback"]["replicas"]);
        assert!((whole(&hpa["minReplicas"])..=whole(&hpa["maxReplicas"])).contains(&fallback));
        assert_eq!(behavior(file), behavior("hpa.yaml"), "{file}");
        let triggers = spec["triggers"].as_array().expect("triggers");
        for (trigger, (name, wanted)) in triggers.iter().zip(&targets) {
            let metadata = trigger["metadata"].as_object().expect("an object");
            assert!(metadata.values().all(Value::is_string), "KEDA takes strings: {metadata:?}");
            assert_eq!(&metadata[target], wanted, "{file}");
            let signal = name.as_str().unwrap().trim_start_matches("kvroute_signals_");
            let asked = metadata.get("query").or(metadata.get("valueLocation")).expect("what is asked");
            let asked = asked.as_str().unwrap();
            assert!(asked.contains(signal) || signal.starts_with(asked), "{file}: {asked} for {signal}");
        }
        assert_eq!(triggers.len(), targets.len());
    }
    // What is asked for is what kvroute reckons with itself, and lies in its answer.
    assert_eq!(kvroute_default("`signals.waiting_per_replica`"), targets[0].1);
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    for field in ["`desired_replicas`", "`waiting`", "`knee_requests_per_second_per_replica`"] {
        let row = format!("| {field}");
        assert!(readme.lines().any(|line| line.starts_with(&row)), "README.md has no {field}");
    }
    assert!(text("skypilot.yaml").contains("`knee_requests_per_second_per_replica`"));
    let shed = "four times the scalers' target";
    let bound = kvroute_default("`shed.waiting`");
    assert!(text("README.md").contains(shed) && bound == "20", "4 x 5 is not {bound}");
}

/// The default of a key in the README's table.
fn kvroute_default(key: &str) -> String {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let row = readme.lines().find(|line| line.starts_with(&format!("| {key} |"))).expect("a row");
    row.split(" | ").nth(1).expect("a default").to_owned()
}

#[test]
fn every_metric_that_is_asked_for_is_in_the_readme_and_the_adapter_hands_on_what_the_hpa_asks_for() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let adapter = the("ConfigMap", "prometheus-adapter.yaml")["data"]["config.yaml"].clone();
    let rules: Value = serde_yaml_ng::from_str(adapter.as_str().expect("text")).unwrap();
    let rule = &rules["externalRules"][0];
    let keys: Vec<&String> = rule.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["metricsQuery", "resources", "seriesQuery"]);
    assert_eq!(rule["resources"], json!({ "namespaced": false }));
    for signal in ["waiting_requests", "desired_replicas"] {
        assert!(rule["seriesQuery"].as_str().unwrap().contains(signal));
        let gauge = format!("| `kvroute_signals_{signal}`");
        assert!(readme.lines().any(|line| line.starts_with(&gauge)), "README.md has no {signal}");
    }
    assert!(
        rule["metricsQuery"].as_str().unwrap().starts_with("max("),
        "a sum would count each gateway's again"
    );
}

#[test]
fn everything_that_is_referred_to_is_there() {
    let control = documents("control.yaml");
    let named = |kind: &str| -> Vec<&Value> {
        control
            .iter()
            .filter(|object| object["kind"] == kind)
            .map(|object| &object["metadata"]["name"])
            .collect()
    };
    assert_eq!(
        (named("Secret"), named("Service")),
        (vec![&json!("kvroute-control")], vec![&json!("kvroute-control"), &json!("gateway")])
    );
    let token = the("Secret", "control.yaml")["stringData"]["token"].clone();
    assert!((16..=256).contains(&token.as_str().expect("text").len()), "the gateways refuse it");
    let secrets =
        ["vllm.yaml", "deletion-cost.yaml"].map(|file| text(file).matches("name: kvroute-control\n").count());
    assert_eq!(secrets, [1, 1]);
    let auth = the("TriggerAuthentication", "keda-metrics-api.yaml");
    assert_eq!(
        auth["spec"]["secretTargetRef"],
        json!([{ "parameter": "token", "name": "kvroute-control", "key": "token" }])
    );
    for trigger in
        the("ScaledObject", "keda-metrics-api.yaml")["spec"]["triggers"].as_array().expect("triggers")
    {
        assert_eq!(trigger["authenticationRef"]["name"], auth["metadata"]["name"]);
        assert_eq!(trigger["metadata"]["authMode"], "bearer");
        assert_eq!(trigger["metadata"]["url"], "http://kvroute-control:9091/kvroute/signals");
    }
    let pod = &the("Deployment", "vllm.yaml")["spec"]["template"];
    assert_eq!(pod["metadata"]["labels"], the("Deployment", "vllm.yaml")["spec"]["selector"]["matchLabels"]);
    assert_eq!(pod["metadata"]["labels"], the("Service", "vllm.yaml")["spec"]["selector"]);
    assert_eq!(
        pod["metadata"]["labels"],
        the("PodDisruptionBudget", "vllm.yaml")["spec"]["selector"]["matchLabels"]
    );
    assert!(repository().join("scripts/prestop").is_file());
    let role = the("RoleBinding", "deletion-cost.yaml")["roleRef"]["name"].clone();
    assert_eq!(role, the("Role", "deletion-cost.yaml")["metadata"]["name"]);
}

#[test]
fn the_skypilot_service_has_fields_that_skypilot_knows_and_scales_below_the_knee() {
    let service = documents("skypilot.yaml").remove(0);
    // `get_service_schema` of SkyPilot 0.14.1, sky/utils/schemas.py.
    let policy = service["service"]["replica_policy"].as_object().expect("a policy");
    let known = [
        "min_replicas",
        "max_replicas",
        "target_qps_per_replica",
        "upscale_delay_seconds",
        "downscale_delay_seconds",
    ];
    assert_eq!(policy.keys().map(String::as_str).collect::<BTreeSet<_>>(), known.into());
    let probe = service["service"]["readiness_probe"].as_object().expect("a probe");
    let known = ["path", "post_data", "initial_delay_seconds", "timeout_seconds"];
    assert_eq!(probe.keys().map(String::as_str).collect::<BTreeSet<_>>(), known.into());
    assert_eq!(probe["post_data"]["max_tokens"], 1);
    // "# 0.8 x 1.2 x 4: .."
    let text = text("skypilot.yaml");
    let sum = text.lines().find_map(|line| line.trim().strip_prefix("# 0.8 x ")).expect("how it comes about");
    let factors = sum.split(':').next().unwrap().split(" x ");
    let target: f64 =
        factors.map(|factor| factor.parse::<f64>().unwrap()).fold(0.8, |target, factor| target * factor);
    assert!((policy["target_qps_per_replica"].as_f64().unwrap() - target).abs() < 1e-9, "{target}");
    let engines = service["run"].as_str().unwrap().lines().next().unwrap().split(" in ").nth(1).unwrap();
    let count = engines.trim_end_matches("; do").split(' ').count();
    assert_eq!(service["resources"]["accelerators"], format!("H100:{count}"));
    assert!(sum.split(':').next().unwrap().ends_with(&format!(" x {count}")));
    let envoy = fs::read_to_string(repository().join("envoy/envoy.yaml")).unwrap();
    for n in 0..count {
        assert!(envoy.contains(&format!("127.0.0.1:{}", 8001 + n)), "envoy.yaml has no engine {n}");
    }
    assert!(envoy.contains(&format!("port_value: {}", service["resources"]["ports"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_asks_for_a_token_and_fails_where_health_says_that_all_is_well() {
    let fleet = Fleet::start(1, EngineOptions::default()).await.unwrap();
    let address = fleet.addresses()[0];
    let probe = async |seconds: &str| {
        let command = script(&container()["startupProbe"]["exec"]["command"]);
        assert!(command.contains("--max-time 20") && command.contains("127.0.0.1:8000"));
        let command = command.replace("--max-time 20", &format!("--max-time {seconds}"));
        let command = command.replace("127.0.0.1:8000", &address.to_string());
        let status = Command::new("sh").args(["-c", &command]).env("MODEL", "mock").status().await.unwrap();
        status.success()
    };
    assert!(probe("20").await);
    let prompts = fleet.report().total.prompt_tokens;
    assert!((1..=8).contains(&prompts), "it costs next to nothing: {prompts} tokens");
    fleet.engine(0).fault(Fault::Stall).await;
    assert!(!probe("1").await, "it stands still");
    let health = format!("GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let health = client::raw(address, health.as_bytes(), |_| false).await.unwrap();
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    fleet.engine(0).fault(Fault::Clear).await;
    fleet.engine(0).fault(Fault::Status { code: 500 }).await;
    assert!(!probe("20").await);
    fleet.engine(0).fault(Fault::Clear).await;
    fleet.engine(0).fault(Fault::Refuse).await;
    assert!(!probe("20").await, "as while it loads");
}

/// Answers everything with this status of the fleet, to whoever knows the secret.
async fn control(status: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4_096];
            let size = stream.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..size]).to_lowercase();
            let is_known = request.starts_with("get /kvroute/status ")
                && request.contains("authorization: bearer s3cret");
            let (code, body) = if is_known { ("200 OK", status.clone()) } else { ("401 No", String::new()) };
            let head =
                format!("HTTP/1.1 {code}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes()).await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ranking_is_written_to_the_pods_whose_cost_has_changed() {
    // As kvroute writes it: the address comes first.
    let host = |(ip, cost): (&str, i64)| {
        format!(
            r#"{{"host":"{ip}:8000","life":"ready","draining":false,"deletion_cost":{cost},"running":3}}"#
        )
    };
    let hosts = [("10.0.0.1", 120), ("10.0.0.11", -5), ("[fd00::1]", 7), ("10.0.0.3", 40)].map(host);
    let status = format!(r#"{{"hosts":[{}],"running":3,"tier":{{"affinity":"full"}}}}"#, hosts.join(","));
    let home = tempfile::tempdir().unwrap();
    let (told, kubectl) = (home.path().join("told"), home.path().join("kubectl"));
    // Its pods, as the jsonpath prints them: name, address, and the cost so far.
    let pods = "vllm-a 10.0.0.1 \nvllm-b 10.0.0.11 3\nvllm-c fd00::1 \nvllm-d 10.0.0.3 40\nvllm-e 10.0.0.99 \nvllm-pending  \n";
    let fake = format!(
        "#!/bin/sh\ncase $1 in\nget) printf '{}' ;;\n*) echo \"$@\" >>{told:?} ;;\nesac\n",
        pods.replace('\n', "\\n")
    );
    fs::write(&kubectl, fake).unwrap();
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
    let job = the("CronJob", "deletion-cost.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        ["containers"][0]
        .clone();
    let path = format!("{}:{}", home.path().display(), std::env::var("PATH").unwrap());
    let run = async |secret: &str| {
        let words: Vec<&str> = job["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("PATH", &path).env("KVROUTE_SECRET", secret).stderr(Stdio::null());
        command.env("KVROUTE_CONTROL", format!("http://{}", control(status.clone()).await));
        command.status().await.unwrap().success()
    };
    assert!(!run("wrong").await && !told.exists(), "a ranking that is not known is not written");
    assert!(run("s3cret").await);
    let annotate = |pod: &str, cost: i64| {
        format!("annotate pod {pod} --overwrite controller.kubernetes.io/pod-deletion-cost={cost}\n")
    };
    let wanted = annotate("vllm-a", 120) + &annotate("vllm-b", -5) + &annotate("vllm-c", 7);
    assert_eq!(fs::read_to_string(&told).unwrap(), wanted);
}
