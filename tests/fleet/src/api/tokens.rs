//! vLLM's tokens in, tokens out: how is `/inference/v1/generate` read and answered?

use serde::Deserialize;

use crate::answer::{list, quote, Answer, ApiError, Choice, Delta};
use crate::api::Asked;
use crate::event_stream::event;
use crate::prompt::{token_ids, Prompt, ID_BYTES};
use crate::report::Usage;
use crate::request::{missing, parse, Generation, Wish, DEFAULT_MAX_TOKENS};
use crate::stats::unix_seconds;

#[derive(Deserialize)]
struct Fields {
    model: Option<String>,
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    sampling_params: Sampling,
    cache_salt: Option<String>,
    stream: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Sampling {
    max_tokens: Option<usize>,
    n: Option<usize>,
}

struct InTokens {
    id: String,
    model: String,
    created: u64,
    details: bool,
}

/// `/inference/v1/generate`
pub(crate) fn generate(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    let body = asked.json()?;
    let fields: Fields = parse(body)?;
    let prompt = Prompt::from_ids(&fields.token_ids.ok_or_else(|| missing("token_ids", body))?);
    let max_tokens = fields.sampling_params.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let n = fields.sampling_params.n.unwrap_or(1);
    let (model, options) = (fields.model.as_deref(), asked.options());
    let wish = Wish::checked(vec![prompt], n, max_tokens, model, fields.cache_salt, options)?;
    let answer = InTokens {
        id: quote(&format!("generate-tokens-{}", asked.id())),
        model: quote(&wish.model),
        created: unix_seconds() as u64,
        details: options.prompt_tokens_details,
    };
    Ok(Generation { wish, stream: fields.stream.unwrap_or(false), answer: Box::new(answer) })
}

impl Answer for InTokens {
    fn whole(&mut self, choices: &[Choice], usage: Usage) -> String {
        let choice = |(index, choice): (usize, &Choice)| {
            let (finish, tokens) = (choice.finish.as_str(), choice.usage.generated_tokens);
            format!(
                r#"{{"index":{index},"finish_reason":"{finish}","stop_reason":null,"token_ids":{},"routed_experts":null,"sampling_mask":null,"weight_versions":[{{"version":"default","start":0,"end":{tokens}}}],"logprobs":null}}"#,
                ids(&choice.text)
            )
        };
        let choices = list(choices.iter().enumerate().map(choice));
        let (head, usage) = (self.head(), self.usage(usage));
        format!(
            r#"{{{head},"usage":{usage},"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":null,"mm_placeholders":null,"metrics":null,"kv_transfer_params":null,"ec_transfer_params":null,"output_mode":"tokens","choices":{choices}}}"#
        )
    }

    fn chunk(&mut self, out: &mut String, delta: &Delta<'_>) {
        let (head, index, ids) = (self.head(), delta.index, ids(delta.text));
        let finish = delta.finish.map_or_else(|| "null".to_owned(), |finish| quote(finish.as_str()));
        event(out, |out| {
            out.push_str(&format!(
                r#"{{{head},"choices":[{{"index":{index},"token_ids":{ids},"finish_reason":{finish}}}]}}"#
            ));
        });
    }

    fn end(&mut self, out: &mut String, usage: Usage) {
        let (head, usage) = (self.head(), self.usage(usage));
        event(out, |out| out.push_str(&format!(r#"{{{head},"choices":[],"usage":{usage}}}"#)));
        out.push_str("data: [DONE]\n\n");
    }
}

impl InTokens {
    fn head(&self) -> String {
        let Self { id, model, created, .. } = self;
        format!(r#""request_id":{id},"model":{model},"created":{created}"#)
    }

    fn usage(&self, usage: Usage) -> String {
        let Usage { prompt_tokens, generated_tokens, cached_tokens, .. } = usage;
        let total = prompt_tokens + generated_tokens;
        let details = match self.details {
            true => format!(
                r#"{{"cached_tokens":{cached_tokens},"created_cache_tokens":null,"multimodal_tokens":null}}"#
            ),
            false => "null".to_owned(),
        };
        format!(
            r#"{{"prompt_tokens":{prompt_tokens},"total_tokens":{total},"completion_tokens":{generated_tokens},"prompt_tokens_details":{details},"completion_tokens_details":null}}"#
        )
    }
}

fn ids(text: &str) -> String {
    list(token_ids(text.as_bytes(), ID_BYTES).into_iter().map(|id| id.to_string()))
}
