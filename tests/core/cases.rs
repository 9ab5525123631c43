//! Situations from the field that other routers got wrong, with the outcome we want.

use super::support::{addresses, chat, common_bytes, keys, read, read_in_pieces, router};
use super::test;
use kvroute::core::prompt::{Api, Outline, Prompt, Unread};
use kvroute::core::route::Walk;
use std::collections::HashMap;

const MAPS: &str = "The reading room opens at nine and lends maps, atlases and globes. ";
const BOATS: &str = "Boats leave the north pier each hour and carry grain, salt and rope. ";

fn read_chat(body: &str) -> Prompt {
    read(Api::Chat, body.as_bytes())
}

fn messages(list: &str) -> Prompt {
    read_chat(&format!(r#"{{"model":"org/guide-7b","messages":[{list}]}}"#))
}

fn text(role: &str, text: &str) -> String {
    format!(r#"{{"role":"{role}","content":"{text}"}}"#)
}

/// Where each of `prompts` goes, one after another, with nothing else in flight.
fn placed(hosts: usize, prompts: impl IntoIterator<Item = Prompt>) -> HashMap<String, usize> {
    let mut router = router(hosts);
    let mut count = HashMap::new();
    for (stream, prompt) in prompts.into_iter().enumerate() {
        let mut walk = Walk::default();
        router.advance(&mut walk, &prompt, true);
        let decision = router.decide(&walk, &prompt, prompt.bytes(), 1_000);
        router.commit(stream as u32, &decision, 1_000);
        router.remember(decision.hosts[0], &prompt, &mut Default::default(), true);
        router.end(stream as u32);
        *count.entry(addresses(hosts)[usize::from(decision.hosts[0].0)].clone()).or_default() += 1;
    }
    count
}

#[test]
fn content_as_parts_is_the_same_prompt_as_content_as_a_string() {
    let parts =
        |text: &str| messages(&format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#));
    let (a, b, c) =
        (parts(&MAPS.repeat(40)), messages(&text("user", &MAPS.repeat(40))), parts(&BOATS.repeat(40)));
    assert_eq!(keys(&a), keys(&b));
    assert_eq!(common_bytes(&a, &c), 0);
    assert!([&a, &b, &c].iter().all(|prompt| prompt.unread().is_none() && prompt.bytes() > 2_000));
}

#[test]
fn null_and_absent_content_are_the_same_and_stop_nothing() {
    let turn = |assistant: &str, result: &str| {
        messages(
            &[&text("system", &MAPS.repeat(40)), &text("user", "When?"), assistant, &text("tool", result)]
                .join(","),
        )
    };
    let call =
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"k1","function":{"name":"hours"}}]}"#;
    let a = turn(call, &BOATS.repeat(12));
    let b = turn(call, &MAPS.repeat(12));
    // The system and the first user message are shared; the tool's result is not.
    assert!(common_bytes(&a, &b) > 2_200 && common_bytes(&a, &b) < 2_900);
    let absent = turn(r#"{"role":"assistant"}"#, "x");
    for same in
        [r#"{"role":"assistant","content":null,"tool_calls":null}"#, r#"{"role":"assistant","content":""}"#]
    {
        assert_eq!(keys(&absent), keys(&turn(same, "x")));
    }
}

#[test]
fn token_ids_are_a_prompt() {
    let ids = |seed: u64, count: usize| {
        let mut numbers = super::support::Numbers(seed);
        (0..count).map(|_| (numbers.below(120_000) + 100).to_string()).collect::<Vec<_>>().join(",")
    };
    let completion =
        |list: &str| read(Api::Completions, format!(r#"{{"model":"m","prompt":[{list}]}}"#).as_bytes());
    let a = completion(&ids(1, 512));
    let b = completion(&format!("{},{}", ids(1, 384), ids(2, 128)));
    assert_eq!(a.bytes(), 4 * 512);
    assert_eq!(common_bytes(&a, &b), 4 * 384);
    assert_eq!(common_bytes(&a, &completion(&ids(3, 512))), 0);
    let spread = placed(4, (0..200).map(|seed| completion(&ids(seed + 10, 512))));
    assert!(spread.values().all(|&count| (30..=70).contains(&count)), "{spread:?}");
}

#[test]
fn the_next_turn_of_a_chat_matches_all_of_the_last_one_and_another_chat_only_the_system_message() {
    let chat = |topic: &str, more: &str| {
        let [system, user] = [text("system", &MAPS.repeat(10)), text("user", &topic.repeat(40))];
        messages(&format!("{system},{user},{},{}{more}", text("assistant", "Noted."), text("user", "Go on.")))
    };
    let a = chat(BOATS, "");
    let b = chat("Kites need wind, line and a tail of cloth strips. ", "");
    let c = chat(BOATS, &format!(",{},{}", text("assistant", "Next stop."), text("user", "And then?")));
    assert!(common_bytes(&a, &b) <= 700 && common_bytes(&a, &b) >= 512);
    // All but the unfilled block and what the ladder of depths leaves out.
    assert!(common_bytes(&a, &c) * 5 >= a.bytes() * 4, "{} of {}", common_bytes(&a, &c), a.bytes());
}

#[test]
fn prompts_that_differ_in_their_last_byte_differ() {
    let plate = |n: usize| {
        let url = format!("https://img.example/collections/2024/atlas-plates/full-size/plate-{n:03}.png");
        let part = format!(
            r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}},{{"type":"text","text":"Describe it."}}"#
        );
        messages(&format!(r#"{{"role":"user","content":[{part}]}}"#))
    };
    assert_eq!(keys(&plate(1)), keys(&plate(1)));
    assert_ne!(keys(&plate(1)), keys(&plate(2)));
    let spread = placed(4, (0..200).map(plate));
    assert!(spread.len() == 4 && spread.values().all(|&count| count <= 80), "{spread:?}");
}

#[test]
fn a_salt_keeps_tenants_apart_and_an_empty_one_is_none() {
    let salted =
        |salt: &str| read_chat(&chat(&MAPS.repeat(40), "Which?").replace("]}", &format!("]{salt}}}")));
    let (one, two, none) = (salted(r#","cache_salt":"one""#), salted(r#","cache_salt":"two""#), salted(""));
    assert_eq!((common_bytes(&one, &two), common_bytes(&one, &none)), (0, 0));
    assert_eq!(keys(&one), keys(&salted(r#","cache_salt":"one""#)));
    for same in [r#","cache_salt":"""#, r#","cache_salt":null"#] {
        assert_eq!(keys(&none), keys(&salted(same)));
    }
}

#[test]
fn models_and_adapters_are_apart_and_an_unknown_one_is_a_model_too() {
    let of =
        |model: &str| read_chat(&format!(r#"{{{model}"messages":[{}]}}"#, text("user", &MAPS.repeat(40))));
    let (base, lora, none) = (of(r#""model":"base","#), of(r#""model":"museum-lora","#), of(""));
    assert_eq!((common_bytes(&base, &lora), common_bytes(&lora, &none)), (0, 0));
    assert_eq!(keys(&none), keys(&of(r#""model":null,"#)));
    assert!(none.bytes() > 2_000);
}

#[test]
fn half_a_surrogate_pair_and_bytes_that_are_no_text_are_a_prompt() {
    let prompt = |content: &[u8]| {
        let body = [br#"{"messages":[{"role":"user","content":""#.as_slice(), content, br#""}]}"#].concat();
        read(Api::Chat, &body)
    };
    let odd: [&[u8]; 5] = [
        br"tide table \ud83e",
        br"\udd9c parrot first",
        br"\ud83e\ud83e twice, then \u0000 nul and \u00e9",
        b"raw \xFF then cut \xE6\xB5",
        br"tide table \ud83f",
    ];
    for (n, content) in odd.iter().enumerate() {
        assert_eq!(prompt(content).unread(), None);
        for other in odd.iter().skip(n + 1) {
            assert_ne!(keys(&prompt(content)), keys(&prompt(other)));
        }
    }
    assert_eq!(keys(&prompt(br"\ud83e\udd9c")), keys(&prompt("🦜".as_bytes())));
}

#[test]
fn the_pieces_in_which_a_body_comes_do_not_matter() {
    let system = r"Maps é海 and globes, shelf by shelf, \u00e9 as escape. ".repeat(2_400);
    let body =
        format!(r#"{{"model":"m","messages":[{},{}]}}"#, text("system", &system), text("user", "Go on."));
    let body = body.as_bytes();
    let whole = read(Api::Chat, body);
    assert!(super::support::depth(&whole) > 20 && whole.bytes() > 100_000);
    let accent = body.iter().position(|&byte| byte == 0xC3).expect("é");
    let escape = body.windows(2).position(|pair| pair == br"\u").expect("an escape");
    let (head, rest) = body.split_at(300);
    let one_by_one: Vec<&[u8]> = head.chunks(1).chain([rest]).collect();
    let cuts = [
        body.chunks(16_384).collect(),
        one_by_one,
        vec![&body[..accent + 1], &body[accent + 1..]],
        vec![&body[..escape + 1], &body[escape + 1..]],
        vec![body, &[]],
    ];
    for pieces in cuts {
        let cut = read_in_pieces(Api::Chat, pieces);
        assert_eq!((keys(&cut), cut.bytes()), (keys(&whole), whole.bytes()));
    }
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
    let torn = read_chat(&chat(&MAPS.repeat(40), "x")[..1_500]);
    assert_eq!(torn.unread(), None);
    assert_eq!(read_chat("\u{feff}{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}").unread(), None);
}

#[test]
fn a_thousand_prompts_fall_evenly_and_a_lost_host_moves_only_its_own() {
    let prompt = |n: usize| read_chat(&chat(&format!("{n} {}", MAPS.repeat(15)), "x"));
    let spread = placed(10, (0..1_000).map(prompt));
    assert!(spread.len() == 10 && spread.values().all(|count| (60..=140).contains(count)), "{spread:?}");
}
