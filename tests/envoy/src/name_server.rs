//! Which addresses has a name, while they come and go? A name server on a UDP port of loopback, for one name.

use anyhow::Result;
use simple_dns::rdata::{RData, A};
use simple_dns::{Packet, ResourceRecord, CLASS, QTYPE, RCODE, TYPE};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// Seconds for which an answer may be kept: nobody is to keep one.
const TTL_S: u32 = 0;

/// What is answered, whatever name is asked for.
#[derive(Debug, Clone)]
pub enum Answer {
    /// It has these addresses.
    Addresses(Vec<Ipv4Addr>),
    /// The server fails.
    Failure,
    /// Nothing comes.
    Silence,
}

/// Runs until it is dropped.
pub struct NameServer {
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    asked: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl NameServer {
    /// Starts one that answers this.
    pub async fn start(answer: Answer) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?;
        let answer = Arc::new(Mutex::new(answer));
        let asked = Arc::default();
        let task = tokio::spawn(serve(socket, Arc::clone(&answer), Arc::clone(&asked)));
        Ok(Self { address, answer, asked, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// From now on it answers this.
    pub fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(socket: UdpSocket, answer: Arc<Mutex<Answer>>, asked: Arc<AtomicUsize>) {
    let mut query = [0; 1_500];
    while let Ok((length, client)) = socket.recv_from(&mut query).await {
        asked.fetch_add(1, Ordering::Relaxed);
        let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(reply) = reply(&query[..length], &answer) {
            // A client that is gone needs none.
            let _ = socket.send_to(&reply, client).await;
        }
    }
}

fn reply(query: &[u8], answer: &Answer) -> Option<Vec<u8>> {
    let mut reply = Packet::parse(query).ok()?.into_reply();
    let question = reply.questions.first()?.clone();
    match answer {
        Answer::Silence => return None,
        Answer::Failure => *reply.rcode_mut() = RCODE::ServerFailure,
        Answer::Addresses(addresses) if question.qtype == QTYPE::TYPE(TYPE::A) => {
            let record = |address: &Ipv4Addr| {
                let data = RData::A(A { address: u32::from(*address) });
                ResourceRecord::new(question.qname.clone(), CLASS::IN, TTL_S, data)
            };
            reply.answers = addresses.iter().map(record).collect();
        }
        // It has no address of that kind.
        Answer::Addresses(_) => {}
    }
    reply.build_bytes_vec().ok()
}
