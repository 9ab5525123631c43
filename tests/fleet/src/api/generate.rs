//! `/generate` of SGLang and of TGI: which of the two is asked, and how does each answer? SGLang's requests have `text`
//! or `input_ids`, TGI's have `inputs`.

use serde::Deserialize;

use crate::answer::{list, quote, Answer, ApiError, Choice, Delta};
use crate::api::Asked;
use crate::event_stream::event;
use crate::prompt::{token_ids, Prompt};
use crate::report::Usage;
use crate::request::{missing, parse, Generation, Prompts, Wish, DEFAULT_MAX_TOKENS};
use crate::sequence::Finish;

#[derive(Deserialize)]
struct Fields {
    text: Option<Prompts>,
    input_ids: Option<Prompts>,
    inputs: Option<String>,
    #[serde(default)]
    sampling_params: Parameters,
    #[serde(default)]
    parameters: Parameters,
    stream: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Parameters {
    max_new_tokens: Option<usize>,
    n: Option<usize>,
    #[serde(default)]
    details: bool,
}

struct Sglang {
    id: String,
    token_bytes: usize,
    is_batch: bool,
    /// What each choice's stream has said: every event repeats it.
    said: Vec<String>,
}

struct Tgi {
    details: bool,
}

/// `/generate`
pub(crate) fn generate(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    let body = asked.json()?;
    let Fields { text, input_ids, inputs, sampling_params, parameters, stream } = parse(body)?;
    match (text.or(input_ids), inputs) {
        (Some(prompts), _) => sglang(asked, prompts, &sampling_params, stream.unwrap_or(false)),
        (None, Some(inputs)) => tgi(asked, inputs, &parameters),
        (None, None) => Err(missing("text", body)),
    }
}

fn sglang(
    asked: &Asked<'_>,
    prompts: Prompts,
    parameters: &Parameters,
    stream: bool,
) -> Result<Generation, ApiError> {
    let n = parameters.n.unwrap_or(1);
    let is_batch = prompts.is_batch || n > 1;
    let prompts = prompts.into_prompts(asked.options());
    let token_bytes = prompts.first().map_or(asked.options().bytes_per_token, Prompt::token_bytes);
    let max_tokens = parameters.max_new_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let wish = Wish::checked(prompts, n, max_tokens, None, None, asked.options())?;
    let said = vec![String::new(); wish.prompts.len() * n];
    let answer = Box::new(Sglang { id: asked.id(), token_bytes, is_batch, said });
    Ok(Generation { wish, stream, answer })
}

fn tgi(asked: &Asked<'_>, inputs: String, parameters: &Parameters) -> Result<Generation, ApiError> {
    let prompt = Prompt::from_text(inputs, asked.options().bytes_per_token);
    let max_tokens = parameters.max_new_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let wish = Wish::checked(vec![prompt], 1, max_tokens, None, None, asked.options())?;
    // TGI streams on another path.
    Ok(Generation { wish, stream: false, answer: Box::new(Tgi { details: parameters.details }) })
}

impl Answer for Sglang {
    fn whole(&mut self, choices: &[Choice], _usage: Usage) -> String {
        let mut answers = choices.iter().enumerate().map(|(index, choice)| {
            format!("{{{}}}", self.fields(index, &choice.text, Some(choice.finish), choice.usage))
        });
        match self.is_batch {
            true => list(answers),
            false => answers.next().unwrap_or_default(),
        }
    }

    fn chunk(&mut self, out: &mut String, delta: &Delta<'_>) {
        let Delta { index, text, finish, usage, .. } = *delta;
        if let Some(said) = self.said.get_mut(index) {
            said.push_str(text);
        }
        let said = self.said.get(index).map_or("", String::as_str);
        let fields = self.fields(index, said, finish, usage);
        let place = if self.is_batch { format!(r#","index":{index}"#) } else { String::new() };
        event(out, |out| out.push_str(&format!("{{{fields}{place}}}")));
    }

    fn end(&mut self, out: &mut String, _usage: Usage) {
        out.push_str("data: [DONE]\n\n");
    }
}

impl Sglang {
    fn fields(&self, index: usize, text: &str, finish: Option<Finish>, usage: Usage) -> String {
        let id = match self.is_batch {
            true => quote(&format!("{}-{index}", self.id)),
            false => quote(&self.id),
        };
        let ids = list(token_ids(text.as_bytes(), self.token_bytes).into_iter().map(|id| id.to_string()));
        let Usage { prompt_tokens, generated_tokens, cached_tokens, .. } = usage;
        let finish = match finish {
            None => "null".to_owned(),
            Some(Finish::Length) => format!(r#"{{"type":"length","length":{generated_tokens}}}"#),
            Some(Finish::Abort | Finish::Error) => r#"{"type":"abort","message":"Abort"}"#.to_owned(),
        };
        format!(
            r#""text":"{text}","output_ids":{ids},"meta_info":{{"id":{id},"finish_reason":{finish},"prompt_tokens":{prompt_tokens},"weight_version":"default","completion_tokens":{generated_tokens},"cached_tokens":{cached_tokens}}}"#
        )
    }
}

impl Answer for Tgi {
    fn whole(&mut self, choices: &[Choice], usage: Usage) -> String {
        let text = choices.first().map_or("", |choice| choice.text.as_str());
        let details = match self.details {
            true => format!(
                r#","details":{{"finish_reason":"length","generated_tokens":{},"seed":null,"prefill":[],"tokens":[]}}"#,
                usage.generated_tokens
            ),
            false => String::new(),
        };
        format!(r#"{{"generated_text":"{text}"{details}}}"#)
    }
}
