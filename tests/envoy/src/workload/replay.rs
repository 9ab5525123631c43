//! Sends a plan: conversations start when it says, whether or not earlier ones have been answered.

use super::plan::{Conversation, Plan};
use crate::chat::{Chat, Reply, Usage};
use crate::client::Pool;
use anyhow::Result;
use hyper::StatusCode;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What came of one request.
#[derive(Debug, Clone)]
pub struct Record {
    /// The first turn of a conversation is 0.
    pub turn: usize,
    /// From the moment it should have been sent to the first token; None if it failed.
    pub ttft: Option<Duration>,
    /// From that moment to the end of the answer.
    pub elapsed: Duration,
    /// The engine that answered.
    pub engine: String,
    /// What that engine computed.
    pub usage: Usage,
    /// What went wrong, if anything did.
    pub failure: Option<Failure>,
}

/// How a request can fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The answer is an error, or not a whole answer; its status and the start of its body.
    Answered(StatusCode, String),
    /// The answer had begun and was cut, or there was no answer.
    Cut(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Answered(status, body) => write!(f, "{status} {body}"),
            Failure::Cut(why) => f.write_str(why),
        }
    }
}

/// Where and how a plan is sent.
#[derive(Debug)]
pub struct Replay {
    plan: Arc<Plan>,
    pool: Pool,
    limit: Semaphore,
    done: AtomicUsize,
}

impl Replay {
    /// Will send `plan` to `address`, at most `limit` requests at the same time. Requests beyond that
    /// wait, and their waiting counts.
    pub fn new(plan: &Arc<Plan>, address: SocketAddr, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            plan: Arc::clone(plan),
            pool: Pool::new(address),
            limit: Semaphore::new(limit),
            done: AtomicUsize::new(0),
        })
    }

    /// How many requests are done, well or not.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Sends the plan and waits for all answers.
    pub async fn run(self: &Arc<Self>) -> Vec<Record> {
        let start = Instant::now();
        let mut conversations = JoinSet::new();
        for index in 0..self.plan.conversations.len() {
            let replay = Arc::clone(self);
            conversations.spawn(async move {
                let conversation = &replay.plan.conversations[index];
                tokio::time::sleep_until(start + conversation.start).await;
                replay.converse(conversation).await
            });
        }
        conversations.join_all().await.into_iter().flatten().collect()
    }

    /// Each turn carries all that was said before it, the engine's answers too.
    async fn converse(&self, conversation: &Conversation) -> Vec<Record> {
        let mut records = Vec::new();
        let mut chat = Chat::new(&self.plan.systems[conversation.system]).max_tokens(self.plan.answer_tokens);
        chat.stream = self.plan.stream;
        for (turn, said) in conversation.turns.iter().enumerate() {
            tokio::time::sleep(said.think).await;
            chat = chat.user(&said.question);
            let (record, answer) = self.ask(turn, &chat).await;
            records.push(record);
            self.done.fetch_add(1, Ordering::Relaxed);
            chat = chat.assistant(&answer);
        }
        records
    }

    async fn ask(&self, turn: usize, chat: &Chat) -> (Record, String) {
        let due = Instant::now();
        let permit = self.limit.acquire().await;
        let waited = due.elapsed();
        let answer = self.exchange(chat).await;
        drop(permit);
        let mut record = Record {
            turn,
            ttft: None,
            elapsed: due.elapsed(),
            engine: String::new(),
            usage: Usage::default(),
            failure: None,
        };
        match answer {
            Ok(reply) if reply.is_complete() => {
                record.ttft = reply.ttft.map(|ttft| waited + ttft);
                record.engine = reply.engine().to_owned();
                record.usage = reply.usage.unwrap_or_default();
                return (record, reply.text);
            }
            Ok(reply) => {
                let body = String::from_utf8_lossy(&reply.body).chars().take(200).collect();
                record.failure = Some(Failure::Answered(reply.status, body));
            }
            Err(error) => record.failure = Some(Failure::Cut(format!("{error:#}"))),
        }
        (record, String::new())
    }

    async fn exchange(&self, chat: &Chat) -> Result<Reply> {
        let mut connection = self.pool.take().await?;
        let reply = chat.send(&mut connection).await?;
        self.pool.put_back(connection);
        Ok(reply)
    }
}
