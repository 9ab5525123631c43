//! Situations from the field that other routers got wrong, with the outcome we want. Bodies and scrapes are the files
//! in `tests/cases`; which test is for which of them stands in `tests/cases/README.md`.

use super::support::{addresses, chat, common_bytes, keys, post, read, read_in_pieces};
use super::test;
use kvroute::core::config::Config;
use kvroute::core::fleet::Slot;
use kvroute::core::prompt::{classify, Api, Outline, Prompt, Unread};
use kvroute::core::route::Walk;
use kvroute::core::router::Router;
use kvroute::core::scrape::{read_engine, EngineSample};
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of the text that the cases begin with, forty times.
const MAPS: u64 = 40 * 67;

fn read_chat(body: &str) -> Prompt {
    read(Api::Chat, body.as_bytes())
}

/// The chat in a case file.
fn chat_case(name: &str) -> Prompt {
    read(Api::Chat, &cases::body(name))
}

/// The same with `from`, which is there, replaced by `to`.
fn chat_case_but(name: &str, from: &str, to: &str) -> Prompt {
    let body = cases::expand(cases::text(name));
    assert!(body.contains(from), "{name} has no {from}");
    read_chat(&body.replace(from, to))
}

/// The completion in a case file, with another seed for its token ids.
fn completion_case(name: &str, seed: &str, other: &str) -> Prompt {
    let body = cases::expand(&cases::text(name).replace(seed, other));
    read(Api::Completions, body.as_bytes())
}

/// Which of `addresses` each of `prompts` goes to, one after another, with nothing else in flight.
pub fn homes(addresses: &[String], prompts: impl IntoIterator<Item = Prompt>) -> Vec<String> {
    let text = json!({ "cluster": "vllm", "hosts": addresses }).to_string();
    let config = Config::parse(text.as_bytes()).expect("valid");
    let slots = addresses.iter().enumerate().map(|(n, address)| (address.clone(), Slot(n as u16)));
    let mut router = Router::new(&config);
    router.configure(&config, &slots.collect::<Vec<_>>());
    let home = |(stream, prompt): (usize, Prompt)| {
        let mut walk = Walk::default();
        router.advance(&mut walk, &prompt, true);
        let decision = router.decide(&walk, &prompt, prompt.bytes(), 1_000);
        router.commit(stream as u32, &decision, 1_000);
        router.remember(decision.hosts[0], &prompt, &mut Default::default(), true);
        router.end(stream as u32);
        addresses[usize::from(decision.hosts[0].0)].clone()
    };
    prompts.into_iter().enumerate().map(home).collect()
}

/// How many of `homes` each host is.
pub fn counts(homes: &[String]) -> BTreeMap<&str, usize> {
    homes.iter().fold(BTreeMap::new(), |mut counts, home| {
        *counts.entry(home.as_str()).or_default() += 1;
        counts
    })
}

/// C01
#[test]
fn content_as_parts_is_the_same_prompt_as_content_as_a_string() {
    let [a, b, c] = ["C01-a.json.tmpl", "C01-b.json.tmpl", "C01-c.json.tmpl"].map(chat_case);
    assert_eq!(keys(&a), keys(&b));
    assert_eq!(common_bytes(&a, &c), 0);
    assert!([&a, &b, &c].iter().all(|prompt| prompt.unread().is_none() && prompt.bytes() >= MAPS));
}

/// C03
#[test]
fn null_and_absent_content_are_the_same_and_stop_nothing() {
    let [a, b, c] = ["C03-a.json.tmpl", "C03-b.json.tmpl", "C03-c.json.tmpl"].map(chat_case);
    assert!([&a, &b, &c].iter().all(|prompt| prompt.unread().is_none() && prompt.bytes() > MAPS));
    // The system and the first user message, then the call; the tool's results begin differently. Positions are
    // remembered at depths that grow by a quarter, so a fifth may go unseen.
    let common = common_bytes(&a, &b);
    assert!(((MAPS + 16) * 4 / 5..=MAPS + 16 + 256).contains(&common), "{common}");
    for null in [",\n   \"tool_calls\": null", ",\n \"tools\": null", "\n   \"content\": null,"] {
        assert_eq!(keys(&chat_case_but("C03-a.json.tmpl", null, "")), keys(&a), "{null}");
    }
    let empty = "\"role\": \"assistant\",\n   \"content\": \"\"";
    for same in
        ["\"role\": \"assistant\"", "\"role\": \"assistant\", \"content\": null, \"tool_calls\": null"]
    {
        assert_eq!(keys(&chat_case_but("C03-c.json.tmpl", empty, same)), keys(&c), "{same}");
    }
}

/// C05
#[test]
fn token_ids_are_a_prompt() {
    let [a, b, c] = ["C05-a.json.tmpl", "C05-b.json.tmpl", "C05-c.json.tmpl"]
        .map(|name| read(Api::Completions, &cases::body(name)));
    assert_eq!(a.bytes(), 4 * 512);
    let common = common_bytes(&a, &b);
    assert!((4 * 384 * 4 / 5..=4 * 384).contains(&common), "{common}");
    assert_eq!(common_bytes(&a, &c), 0);
    let others = (0..200).map(|n| completion_case("C05-c.json.tmpl", "(512,3)", &format!("(512,{})", n + 3)));
    let homes = homes(&addresses(4), others);
    assert!(counts(&homes).values().all(|&count| (30..=70).contains(&count)), "{:?}", counts(&homes));
}

/// C09
#[test]
fn the_next_turn_of_a_chat_matches_all_of_the_last_one_and_another_chat_only_the_system_message() {
    let [a, b, c] = ["C09-a.json.tmpl", "C09-b.json.tmpl", "C09-c.json.tmpl"].map(chat_case);
    // Full blocks of the ten sentences, and at most the unfilled one after them.
    assert!(common_bytes(&a, &b) >= 512 && common_bytes(&a, &b) <= 700, "{}", common_bytes(&a, &b));
    // All but the unfilled block and what the ladder of depths leaves out.
    assert!(common_bytes(&a, &c) * 5 >= a.bytes() * 4, "{} of {}", common_bytes(&a, &c), a.bytes());
}

/// C11
#[test]
fn prompts_that_differ_in_their_last_byte_differ() {
    let [a, b, c] = ["C11-a.json", "C11-b.json", "C11-c.json"].map(chat_case);
    assert_ne!(keys(&a), keys(&b));
    assert_eq!(keys(&a), keys(&c));
    let plates = (0..200).map(|n| chat_case_but("C11-a.json", "plate-001", &format!("plate-{n:03}")));
    let homes = homes(&addresses(4), plates);
    let counts = counts(&homes);
    assert!(counts.len() == 4 && counts.values().all(|&count| count <= 80), "{counts:?}");
}

/// C15
#[test]
fn a_salt_keeps_tenants_apart_and_an_empty_one_is_none() {
    let [a, b, none] = ["C15-a.json.tmpl", "C15-b.json.tmpl", "C15-none.json.tmpl"].map(chat_case);
    assert_eq!((common_bytes(&a, &b), common_bytes(&a, &none), common_bytes(&b, &none)), (0, 0, 0));
    assert_eq!(keys(&a), keys(&chat_case("C15-a.json.tmpl")));
    for same in ["\"\"", "null"] {
        assert_eq!(keys(&none), keys(&chat_case_but("C15-a.json.tmpl", "\"tenant-one\"", same)), "{same}");
    }
}

/// C17
#[test]
fn half_a_surrogate_pair_and_bytes_that_are_no_text_are_a_prompt() {
    let prompts = [
        chat_case("C17-a.json"),
        chat_case("C17-b.json"),
        read(Api::Completions, &cases::body("C17-c.json")),
        chat_case("C17-d.bin"),
        chat_case_but("C17-a.json", "\\ud83e", "\\ud83f"),
    ];
    for (n, prompt) in prompts.iter().enumerate() {
        assert_eq!(prompt.unread(), None);
        assert!(prompts[n + 1..].iter().all(|other| keys(prompt) != keys(other)));
    }
    assert_eq!(keys(&chat_case("C17-e.json")), keys(&chat_case("C17-f.json")));
}

/// C25
#[test]
fn the_pieces_in_which_a_body_comes_do_not_matter() {
    let body = cases::body("C25-body.json.tmpl");
    let body = body.as_slice();
    let whole = read(Api::Chat, body);
    assert!(super::support::depth(&whole) > 20 && whole.bytes() > 100_000);
    let (head, rest) = body.split_at(300);
    let inside = body.iter().position(|&byte| byte > 0x7F).expect("a character of several bytes") + 1;
    let escape = body.windows(2).position(|pair| pair == br"\u").expect("an escape") + 1;
    let cuts = [
        body.chunks(16_384).collect(),
        head.chunks(1).chain([rest]).collect(),
        vec![&body[..inside], &body[inside..]],
        vec![&body[..escape], &body[escape..]],
        vec![body, &[]],
    ];
    for pieces in cuts {
        let cut = read_in_pieces(Api::Chat, pieces);
        assert_eq!((keys(&cut), cut.bytes()), (keys(&whole), whole.bytes()));
    }
}

/// C82
#[test]
fn models_and_adapters_are_apart_and_an_unknown_one_is_a_model_too() {
    let lora = chat_case("C82-a.json.tmpl");
    let none = chat_case("C82-nomodel.json.tmpl");
    let base = chat_case_but("C82-a.json.tmpl", "museum-lora", "museum");
    assert_eq!(
        (common_bytes(&base, &lora), common_bytes(&lora, &none), common_bytes(&base, &none)),
        (0, 0, 0)
    );
    assert!([&base, &lora, &none].iter().all(|prompt| prompt.unread().is_none() && prompt.bytes() > MAPS));
    assert_eq!(keys(&none), keys(&chat_case_but("C82-a.json.tmpl", "\"museum-lora\"", "null")));
    let null = chat_case("C82-nullmodel.json");
    assert_eq!(null.unread(), None);
    assert_eq!(keys(&null), keys(&chat_case_but("C82-nullmodel.json", "\"model\":null,", "")));
}

/// C46
#[test]
fn a_thousand_prefixes_fall_evenly_and_a_change_of_hosts_moves_few() {
    // Addresses of similar form, and of dissimilar.
    let similar: Vec<String> = (1..=11).map(|n| format!("10.0.0.{n}:8000")).collect();
    let others: Vec<String> =
        (1..=11).map(|n| format!("172.16.{}.{}:{}", n * 21, 255 - n, 8000 + n)).collect();
    let prompt = |n: usize| {
        read_chat(&chat(
            &cases::expand(&format!(
                "{n} @@REP(15,Kites need wind, line and a tail of cloth strips, {n}. )@@"
            )),
            "x",
        ))
    };
    let placed = |hosts: &[String]| homes(hosts, (0..1_000).map(prompt));
    for hosts in [similar, others] {
        let ten = placed(&hosts[..10]);
        assert_eq!(counts(&ten).len(), 10);
        assert!(counts(&ten).values().all(|count| (60..=140).contains(count)), "{:?}", counts(&ten));

        let nine: Vec<String> = hosts[..10].iter().filter(|host| **host != hosts[3]).cloned().collect();
        for changed in [placed(&nine), placed(&hosts)] {
            let moved = ten.iter().zip(&changed).filter(|(before, after)| before != after).count();
            assert!(moved <= 150, "{moved} of 1000 moved: {:?}", counts(&changed));
        }
    }
}

/// Every optional setting that is a number, and every other one.
const NUMBERS: [&str; 25] = [
    "candidates",
    "poll.interval_ms",
    "poll.timeout_ms",
    "poll.stale_after_ms",
    "prompt.block_bytes",
    "prompt.hold_bytes",
    "prompt.max_bytes",
    "index.entries",
    "routing.prefill_weight",
    "routing.congestion_weight",
    "routing.most_congestion",
    "routing.burst_prompts",
    "routing.burst_tokens",
    "routing.burst_requests",
    "routing.batch_slowdown",
    "routing.decode_ms",
    "routing.waiting_weight",
    "routing.prefill_tokens_per_s",
    "routing.capacity_tokens",
    "routing.tie_share",
    "routing.tie_ms",
    "routing.home_credit",
    "routing.foreign_discount",
    "routing.peer_spread",
    "routing.unread_share",
];
const OTHERS: [&str; 9] = [
    "destination_header",
    "debug_headers",
    "mode",
    "control",
    "peers",
    "poll.path",
    "learning.prefill_rate",
    "learning.bytes_per_token",
    "learning.capacity",
];

/// What becomes of the least configuration with these settings on top.
fn configured(settings: &[(&str, Value)]) -> Result<Config, String> {
    let mut config = json!({ "cluster": "vllm", "hosts": ["10.0.0.1:8000", "10.0.0.2:8000"] });
    for (key, value) in settings {
        *key.split('.').fold(&mut config, |at, name| &mut at[name]) = value.clone();
    }
    Config::parse(config.to_string().as_bytes()).map_err(|refusal| refusal.to_string())
}

/// C80
#[test]
fn what_is_left_out_or_null_is_the_default_and_what_is_wrong_is_refused_by_its_name() {
    let least = configured(&[]).expect("it needs no more");
    let nulls: Vec<_> = NUMBERS.iter().chain(&OTHERS).map(|key| (*key, Value::Null)).collect();
    assert_eq!(configured(&nulls).as_ref(), Ok(&least));
    for section in ["poll", "prompt", "index", "routing", "learning"] {
        assert_eq!(configured(&[(section, Value::Null)]).as_ref(), Ok(&least));
    }

    let wrong = |key: &str, value: Value| {
        let refusal = configured(&[(key, value.clone())]).expect_err(key);
        let named = refusal.starts_with(&format!("{key}: ")) && refusal.lines().count() == 1;
        assert!(named, "{key} = {value}: {refusal}");
    };
    for key in NUMBERS {
        for value in [json!("7"), json!(-1), json!(1e99), json!(true), json!([7])] {
            wrong(key, value);
        }
    }
    OTHERS.iter().for_each(|key| wrong(key, json!(7)));
    for key in ["prompt.block_bytes", "candidates", "poll.interval_ms", "index.entries"] {
        wrong(key, json!(0));
    }
    for key in ["candidate", "poll.interval", "prompt.block_size", "routing.decode"] {
        wrong(key, json!(1));
    }
    let twice = configured(&[("hosts", json!(["10.0.0.1:8000", "10.0.0.1:8000"]))]);
    assert!(twice.is_err_and(|refusal| refusal.starts_with("hosts[1]: ")));
    for text in ["", "{hosts: ["] {
        assert!(Config::parse(text.as_bytes()).is_err());
    }
    let hosts: Vec<String> = (0..500).map(|n| format!("10.1.{}.{}:8000", n / 250, n % 250)).collect();
    assert_eq!(configured(&[("hosts", json!(hosts))]).map(|config| config.hosts), Ok(hosts));
}

fn scrape(name: &str) -> EngineSample {
    read_engine(cases::file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Requests running and waiting, and the share of the KV cache in use.
fn load(sample: &EngineSample) -> [Option<f64>; 3] {
    [sample.running, sample.waiting, sample.kv_usage]
}

/// C65
#[test]
fn kv_usage_is_read_under_its_new_name_its_old_name_and_once_under_both() {
    for name in ["C65-old.prom", "C65-new.prom", "C65-both.prom"] {
        assert_eq!(load(&scrape(name)), [Some(3.0), Some(1.0), Some(0.72)], "{name}");
    }
}

/// C65
#[test]
fn without_kv_usage_it_is_unknown_and_the_queue_still_counts() {
    assert_eq!(load(&scrape("C65-neither.prom")), [Some(3.0), Some(1.0), None]);
}

/// C67
#[test]
fn one_nan_does_not_throw_the_scrape_away_and_a_junk_line_is_counted() {
    let sample = scrape("C67-mixed.prom");
    assert_eq!(load(&sample), [Some(4.0), Some(12.0), Some(0.25)]);
    assert_eq!(sample.skipped_lines, 2);
    assert_eq!(sample.models, ["org/guide-7b"]);
}

/// C67
#[test]
fn nan_infinite_and_negative_gauges_are_unknown() {
    for name in ["C67-allnan.prom", "C67-odd.prom"] {
        assert_eq!(scrape(name), EngineSample::default(), "{name}");
    }
}

/// C67
#[test]
fn crlf_tabs_and_trailing_blanks_read_the_same() {
    let sample = scrape("C67-crlf.prom");
    assert_eq!(load(&sample), [Some(4.0), Some(12.0), Some(0.25)]);
    assert_eq!(sample.skipped_lines, 0);
}

/// C69
#[test]
fn odd_label_values_neither_hide_a_sample_nor_become_one() {
    let sample = scrape("C69-labels.prom");
    assert_eq!(load(&sample), [Some(6.0), Some(7.0), Some(0.5)]);
    assert_eq!(sample.skipped_lines, 0);
    assert_eq!(sample.models, ["a=b,c", "x{y}\"z", "back\\slash\nline"]);
}

/// C82
#[test]
fn an_adapter_on_its_own_is_something_known() {
    let sample = scrape("C82-h2.prom");
    assert_eq!(sample.lora_adapters, ["museum-lora"]);
    assert_eq!(load(&sample), [None; 3]);
}

#[test]
fn what_is_no_prompt_says_why() {
    for (body, why) in [
        ("", Unread::BadJson),
        ("nonsense", Unread::BadJson),
        ("[]", Unread::NoPrompt),
        ("17", Unread::BadJson),
        ("null ", Unread::NoPrompt),
        (r#"{"model":"m"}"#, Unread::NoPrompt),
        (r#"{"messages":null}"#, Unread::NoPrompt),
        (r#"{"messages":{"role":"user","content":"x"}}"#, Unread::NoPrompt),
        (r#"{"messages":"#, Unread::BadJson),
    ] {
        assert_eq!(read_chat(body).unread(), Some(why), "{body}");
    }
    // What stood before a fault counts.
    let torn = read(Api::Chat, &cases::body("C01-b.json.tmpl")[..1_500]);
    assert_eq!(torn.unread(), None);
    assert_eq!(read_chat("\u{feff}{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}").unread(), None);
}

// ---- the files themselves -----------------------------------------------------------------------

#[test]
fn templates_are_written_out_as_their_author_meant_them() {
    for (template, text) in [
        ("@@REP(3,ab)@@.", "ababab."),
        ("@@REP(2,\"a, (b) \",)@@", "\"a, (b) \",\"a, (b) \","),
        ("@@REP(2,a)b)@@", "a)ba)b"),
        ("@@INTS(3,1)@@", "108660,6928,14500"),
        ("[@@INTS(1,1)@@,@@INTS(1,2)@@]", "[108660,114920]"),
        ("@@B64(10,5)@@", "oDT4R+RATgYGFQ=="),
        ("@@B64(9,5)@@", "oDT4R+RATgYG"),
        ("@@REP(x,1)@@ @@@REP(1,z)@@ a@@b@", "@@REP(x,1)@@ @z a@@b@"),
        ("plain", "plain"),
    ] {
        assert_eq!(cases::expand(template), text);
    }
    for (name, bytes) in [
        ("C01-a.json.tmpl", 2_825),
        ("C05-b.json.tmpl", 3_154),
        ("C08-d.json.tmpl", 2_797),
        ("C25-body.json.tmpl", 136_904),
        ("C30-a.json.tmpl", 639_241),
    ] {
        assert_eq!(cases::body(name).len(), bytes, "{name}");
    }
    let ids: BTreeSet<u32> =
        cases::expand("@@INTS(512,3)@@").split(',').map(|id| id.parse().expect("a number")).collect();
    assert!(ids.len() > 500 && ids.iter().all(|id| (100..120_100).contains(id)));
}

/// Bytes of the text in the coding client's instructions.
const INSTRUCTIONS: u64 = 60 * 67;

/// The `/generate` body in a case file.
fn generate_case(name: &str) -> Prompt {
    read(Api::Generate, &cases::body(name))
}

/// The same with `from`, which is there, replaced by `to`.
fn generate_case_but(name: &str, from: &str, to: &str) -> Prompt {
    let body = cases::expand(&cases::text(name).replace(from, to));
    assert_ne!(body, cases::expand(cases::text(name)), "{name} has no {from}");
    read(Api::Generate, body.as_bytes())
}

/// C08
#[test]
fn a_batch_of_token_ids_is_known_by_its_first_list() {
    let batch = generate_case("C08-a.json.tmpl");
    assert_eq!(batch.unread(), None);
    assert!(batch.is_token_ids() && batch.bytes() >= 4 * 256);
    let other = generate_case_but("C08-a.json.tmpl", "(40,22)", "(40,23)");
    assert!(common_bytes(&batch, &other) * 5 >= 4 * 256 * 4);
    assert_eq!(common_bytes(&batch, &generate_case_but("C08-a.json.tmpl", "(256,21)", "(256,24)")), 0);
}

/// C08
#[test]
fn token_ids_beside_a_text_are_the_prompt() {
    let both = generate_case("C08-b.json.tmpl");
    let text =
        "\"text\":\"@@REP(20,The reading room opens at nine and lends maps, atlases and globes. )@@\",";
    let ids = generate_case_but("C08-b.json.tmpl", text, "");
    assert_eq!(both.unread(), None);
    assert_eq!(keys(&both), keys(&ids));
    assert!(ids.is_token_ids());
}

/// C08
#[test]
fn inputs_are_a_text_and_a_list_of_texts_is_known_by_its_first() {
    let inputs = generate_case("C08-c.json.tmpl");
    let texts = generate_case("C08-d.json.tmpl");
    assert!([&inputs, &texts].iter().all(|prompt| prompt.unread().is_none() && prompt.bytes() >= 20 * 67));
    assert_eq!(common_bytes(&inputs, &generate_case_but("C08-c.json.tmpl", "The reading", "Our reading")), 0);
    assert!(
        common_bytes(&texts, &generate_case_but("C08-d.json.tmpl", "Boats leave", "Ships leave")) >= 1_000
    );
    assert_eq!(common_bytes(&texts, &generate_case_but("C08-d.json.tmpl", "The reading", "Our reading")), 0);
}

fn messages_case(name: &str, leave_out: &str) -> Prompt {
    let text = serde_json::json!({
        "cluster": "vllm", "hosts": ["10.0.0.1:8000"], "prompt": { "leave_out": [leave_out] },
    });
    let config = Config::parse(text.to_string().as_bytes()).expect("valid");
    let mut prompt = Prompt::new(Api::Messages, &config.prompt);
    prompt.feed(&cases::body(name));
    prompt.finish();
    prompt
}

/// C13
#[test]
fn a_code_of_each_request_in_the_system_prompt_hides_its_prefix_unless_it_is_left_out() {
    let [a, b] = ["C13-a.json.tmpl", "C13-b.json.tmpl"].map(|name| read(Api::Messages, &cases::body(name)));
    assert!([&a, &b].iter().all(|prompt| prompt.unread().is_none() && prompt.bytes() > INSTRUCTIONS));
    // The code stands in the first block.
    assert_eq!(common_bytes(&a, &b), 0);
    let [a, b] = ["C13-a.json.tmpl", "C13-b.json.tmpl"]
        .map(|name| messages_case(name, "x-anthropic-billing-header:*"));
    assert_eq!(keys(&a), keys(&b));
    assert!(common_bytes(&a, &b) >= INSTRUCTIONS * 4 / 5 && a.bytes() >= INSTRUCTIONS);
    // A pattern that fits nothing leaves out nothing.
    let [a, b] = ["C13-a.json.tmpl", "C13-b.json.tmpl"].map(|name| messages_case(name, "x-other:*"));
    assert_eq!(common_bytes(&a, &b), 0);
}

/// C13
#[test]
fn prompts_that_a_code_keeps_apart_are_spread() {
    let template = cases::text("C13-a.json.tmpl");
    assert!(template.contains("cch=0a1b2;"));
    let prompts = (0..200).map(|n| {
        let body = cases::expand(&template.replace("cch=0a1b2;", &format!("cch={:05x};", n * 7_919)));
        read(Api::Messages, body.as_bytes())
    });
    let homes = homes(&addresses(4), prompts);
    assert!(counts(&homes).values().all(|&count| (30..=70).contains(&count)), "{:?}", counts(&homes));
}

/// C08, C13, C30
#[test]
fn the_paths_of_other_apis_are_known() {
    assert_eq!(classify(&post("/generate"), &[]), Ok(Api::Generate));
    assert_eq!(classify(&post("/v1/messages"), &[]), Ok(Api::Messages));
    assert_eq!(classify(&post("/v1/responses"), &[]), Ok(Api::Responses));
    // A batch of embeddings has no prefix worth a host: it goes by load.
    assert!(classify(&post("/v1/embeddings"), &[]).is_err());
}
