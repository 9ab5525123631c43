//! Which cache blocks does a chat fill? What a recorded workload says of a request in place of its text, so that
//! another simulator can replay it. Costs one pass over the prompt.

use std::io;

use crate::answer::ApiError;
use crate::api::chat_wish;
use crate::options::EngineOptions;
use crate::prompt::{BlockChain, BlockHash};

/// A chat and its answer as cache blocks. Equal hashes mean equal text up to the end of the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// The blocks of the prompt, in order. The last may be partial, and is then found in no cache.
    pub prompt: Vec<u64>,
    /// The full blocks after those that the prompt fills, which prompt and answer fill together.
    pub answer: Vec<u64>,
}

impl Footprint {
    /// What an engine with these options makes of a chat completion's body and the answer to it, in blocks of
    /// `block_tokens`. An error if the engine would refuse the body.
    pub fn of_chat(
        body: &[u8],
        answer: &str,
        block_tokens: usize,
        options: &EngineOptions,
    ) -> io::Result<Self> {
        let wish = chat_wish(body, options).map_err(invalid)?;
        let prompt = wish.prompts.first().ok_or(io::ErrorKind::InvalidInput)?;
        let model = wish.lora.as_deref().unwrap_or(&options.model);
        let mut chain = prompt.blocks(block_tokens, model, wish.salt.as_deref());
        let (prompt_tokens, answer_tokens) = (prompt.tokens(), answer.len() / prompt.token_bytes());

        let full = chain.hashes().len();
        let prompt = values(&chain, 0, full).chain(chain.open_block().map(BlockHash::value)).collect();
        chain.extend(answer.as_bytes());
        // The last token is never computed, as nothing comes after it.
        let computed = (prompt_tokens + answer_tokens).saturating_sub(1) / block_tokens;
        let answer = values(&chain, full, computed).collect();
        Ok(Self { prompt_tokens, answer_tokens, prompt, answer })
    }
}

fn values(chain: &BlockChain, from: usize, to: usize) -> impl Iterator<Item = u64> + '_ {
    chain.hashes().iter().take(to).skip(from).map(|hash| hash.value())
}

fn invalid(error: ApiError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(messages: &str, answer: &str) -> Footprint {
        let body = format!(r#"{{"messages":[{messages}]}}"#);
        Footprint::of_chat(body.as_bytes(), answer, 2, &EngineOptions::default()).expect("a chat")
    }

    #[test]
    fn the_next_turn_starts_with_what_the_last_one_left() {
        let question = r#"{"role":"user","content":"a question of some length!"}"#;
        let answer = " abc def ghi jkl mno";
        let first = of(question, answer);
        let next = of(
            &format!(
                r#"{question},{{"role":"assistant","content":"{answer}"}},{{"role":"user","content":"?"}}"#
            ),
            "",
        );
        let (_, full) = first.prompt.split_last().expect("a prompt has blocks");
        assert!(!next.prompt.starts_with(&first.prompt), "the prompt's last block was partial");
        assert!(!first.answer.is_empty() && next.prompt.starts_with(&[full, &first.answer].concat()));
    }

    #[test]
    fn a_part_of_a_block_has_a_name_of_its_own() {
        let (short, long) =
            (of(r#"{"role":"user","content":"a"}"#, ""), of(r#"{"role":"user","content":"ab"}"#, ""));
        assert_eq!(short.prompt.len(), short.prompt_tokens.div_ceil(2));
        assert_ne!(short.prompt.last(), long.prompt.last());
    }

    #[test]
    fn what_an_engine_refuses_has_none() {
        let refused = Footprint::of_chat(b"{}", "", 2, &EngineOptions::default());
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
