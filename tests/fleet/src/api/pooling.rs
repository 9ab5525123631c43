//! A pooling model's APIs: how are embeddings, scores, ranks and classes asked for and answered? The prompts run beside
//! the others and leave nothing in the cache; what they are worth is drawn from their bytes.

use serde::Deserialize;

use crate::answer::{list, quote, Answer, ApiError, Choice};
use crate::api::Asked;
use crate::prompt::Prompt;
use crate::report::Usage;
use crate::request::{missing, parse, Generation, Prompts, Wish};
use crate::stats::unix_seconds;

/// Numbers in an embedding.
const DIMENSIONS: u32 = 8;

#[derive(Deserialize)]
struct Inputs {
    model: Option<String>,
    input: Option<Prompts>,
}

#[derive(Deserialize)]
struct Pairs {
    model: Option<String>,
    #[serde(alias = "queries", alias = "data_1")]
    text_1: Option<Texts>,
    #[serde(alias = "documents", alias = "data_2")]
    text_2: Option<Texts>,
}

#[derive(Deserialize)]
struct Ranking {
    model: Option<String>,
    query: Option<String>,
    documents: Option<Vec<String>>,
    top_n: Option<usize>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

/// A list with one entry for each prompt.
struct Listed {
    head: String,
    entry: fn(usize, &Choice) -> String,
}

/// Documents, the best first.
struct Ranked {
    id: String,
    model: String,
    documents: Vec<String>,
    top_n: usize,
}

/// `/v1/embeddings`
pub(crate) fn embeddings(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    of_inputs(asked, "embd", |index, choice| {
        format!(r#"{{"index":{index},"object":"embedding","embedding":{}}}"#, numbers(choice))
    })
}

/// `/pooling`
pub(crate) fn pooling(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    of_inputs(asked, "pool", |index, choice| {
        format!(r#"{{"index":{index},"object":"pooling","data":{}}}"#, numbers(choice))
    })
}

/// `/classify`
pub(crate) fn classify(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    of_inputs(asked, "classify", |index, choice| {
        let first = worth(choice, 0);
        let label = if first < 0.5 { "LABEL_1" } else { "LABEL_0" };
        let probs = format!("[{first},{}]", 1.0 - first);
        format!(r#"{{"index":{index},"label":"{label}","probs":{probs},"num_classes":2}}"#)
    })
}

/// `/score`
pub(crate) fn score(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    let body = asked.json()?;
    let Pairs { model, text_1, text_2 } = parse(body)?;
    let first = text_1.ok_or_else(|| missing("text_1", body))?.all();
    let second = text_2.ok_or_else(|| missing("text_2", body))?.all();
    // One text is compared with all the others.
    let pairs = second.iter().enumerate().map(|(at, text)| (first.get(at).or(first.first()), text));
    let pair = |(first, second): (Option<&String>, &String)| {
        let text = format!("{}{second}", first.map_or("", String::as_str));
        Prompt::from_text(text, asked.options().bytes_per_token)
    };
    let wish = Wish::pooled(pairs.map(pair).collect(), model.as_deref(), asked.options())?;
    Ok(listed(asked, "score", wish, |index, choice| {
        format!(r#"{{"index":{index},"object":"score","score":{}}}"#, worth(choice, 0))
    }))
}

/// `/rerank`
pub(crate) fn rerank(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    let body = asked.json()?;
    let Ranking { model, query, documents, top_n } = parse(body)?;
    let query = query.ok_or_else(|| missing("query", body))?;
    let documents = documents.ok_or_else(|| missing("documents", body))?;
    let pair = |document| Prompt::from_text(format!("{query}{document}"), asked.options().bytes_per_token);
    let wish = Wish::pooled(documents.iter().map(pair).collect(), model.as_deref(), asked.options())?;
    let top_n = top_n.filter(|top_n| *top_n > 0).unwrap_or(documents.len());
    let id = quote(&format!("rerank-{}", asked.id()));
    let answer = Box::new(Ranked { id, model: quote(&wish.model), documents, top_n });
    Ok(Generation { wish, stream: false, answer })
}

fn of_inputs(
    asked: &Asked<'_>,
    prefix: &str,
    entry: fn(usize, &Choice) -> String,
) -> Result<Generation, ApiError> {
    let body = asked.json()?;
    let Inputs { model, input } = parse(body)?;
    let prompts = input.ok_or_else(|| missing("input", body))?.into_prompts(asked.options());
    let wish = Wish::pooled(prompts, model.as_deref(), asked.options())?;
    Ok(listed(asked, prefix, wish, entry))
}

fn listed(asked: &Asked<'_>, prefix: &str, wish: Wish, entry: fn(usize, &Choice) -> String) -> Generation {
    let (id, model) = (quote(&format!("{prefix}-{}", asked.id())), quote(&wish.model));
    let created = unix_seconds() as u64;
    let head = format!(r#""id":{id},"object":"list","created":{created},"model":{model}"#);
    Generation { wish, stream: false, answer: Box::new(Listed { head, entry }) }
}

/// A number of a prompt, from 0 to 1.
fn worth(choice: &Choice, at: u32) -> f64 {
    f64::from(choice.seed.rotate_left(8 * at) as u16) / f64::from(u16::MAX)
}

fn numbers(choice: &Choice) -> String {
    list((0..DIMENSIONS).map(|at| worth(choice, at).to_string()))
}

impl Texts {
    fn all(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

impl Answer for Listed {
    fn whole(&mut self, choices: &[Choice], usage: Usage) -> String {
        let data = list(choices.iter().enumerate().map(|(index, choice)| (self.entry)(index, choice)));
        let (head, tokens) = (&self.head, usage.prompt_tokens);
        format!(
            r#"{{{head},"data":{data},"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens},"completion_tokens":0,"prompt_tokens_details":null}}}}"#
        )
    }
}

impl Answer for Ranked {
    fn whole(&mut self, choices: &[Choice], usage: Usage) -> String {
        let mut ranks: Vec<_> =
            choices.iter().map(|choice| worth(choice, 0)).zip(&self.documents).enumerate().collect();
        ranks.sort_by(|(_, (a, _)), (_, (b, _))| b.total_cmp(a));
        let results = list(ranks.into_iter().take(self.top_n).map(|(index, (worth, document))| {
            let text = quote(document);
            format!(
                r#"{{"index":{index},"document":{{"text":{text},"multi_modal":null}},"relevance_score":{worth}}}"#
            )
        }));
        let (Self { id, model, .. }, tokens) = (self, usage.prompt_tokens);
        format!(
            r#"{{"id":{id},"model":{model},"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens}}},"results":{results}}}"#
        )
    }
}
