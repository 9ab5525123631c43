//! What decides: pure functions and bounded tables. Bytes, numbers and `now` in, values out.
//!
//! | question | module |
//! | --- | --- |
//! | what may an operator set, and what is refused? | [`config`] |
//! | what of this body is prompt, and what model, salt, length? | [`prompt`] |
//! | which block hashes does this prompt have? | [`blocks`] |
//! | how are few bytes copied fast? | [`bytes`] |
//! | who was sent this block, and may still hold it? | [`index`] |
//! | which hosts are there, how are they, what do they hold at most? | [`fleet`] |
//! | which LoRA adapters does a host have loaded? | [`adapters`] |
//! | do a host's requests fail, and when is it tried again? | [`health`] |
//! | does a host stand still, though it has work? | [`wedge`] |
//! | may this host have requests, and if not, why not? | [`life`] |
//! | which hosts are marked to go? | [`drains`] |
//! | which hosts has the cluster just now, and how does Envoy think they are? | [`members`] |
//! | has this host shown that it generates, and is its cache warm? | [`readiness`] |
//! | what is a host asked to show that it generates? | [`probe`] |
//! | which slot is which host's? | [`roster`] |
//! | what does the polling leader tell every worker? | [`snapshot`] |
//! | what will a host's queue cost this request? | [`load`] |
//! | what is a prefix worth that only another host has? | [`tier`] |
//! | where does this request go, and why? | [`route`] |
//! | what does one worker know, and have in flight? | [`router`] |
//! | what stands for a prompt that is not in the request? | [`session`] |
//! | what would a decision have saved that was not carried out? | [`shadow`] |
//! | is there room for a request of this priority? | [`shed`] |
//! | how are the hosts, in JSON? | [`status`] |
//! | which host is cheapest to remove? | [`removal`] |
//! | how long is the fleet's queue, and how many replicas would it take? | [`signals`] |
//! | how is a number written without the library's floats? | [`decimal`] |
//! | what does an engine's `/metrics` say? | [`scrape`] |
//! | what do workers tell each other? | [`journal`] |
//! | what do gateways tell each other? | [`peers`] |
//! | which other gateways are alive, and what do they have in flight? | [`gateways`] |
//! | what is learned from answers: bytes a token, pace, how long prefixes are kept? | [`learning`] |
//! | do the gauges agree with the workers' books? | [`audit`] |
//! | what did the engine say it had cached? | [`usage`] |
//! | by which id may the next turn refer to this answer? | [`answer`] |

pub mod adapters;
pub mod answer;
pub mod audit;
pub mod blocks;
pub mod bytes;
pub mod config;
pub mod decimal;
pub mod drains;
pub mod fleet;
pub mod gateways;
pub mod health;
pub mod index;
pub mod journal;
pub mod learning;
pub mod life;
pub mod load;
pub mod members;
pub mod peers;
pub mod probe;
pub mod prompt;
pub mod readiness;
pub mod removal;
pub mod roster;
pub mod route;
pub mod router;
pub mod scrape;
pub mod session;
pub mod shadow;
pub mod shed;
pub mod signals;
pub mod snapshot;
pub mod status;
pub mod tier;
pub mod usage;
pub mod wedge;
pub mod wire;
