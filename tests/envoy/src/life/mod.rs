//! What happens to requests while the fleet changes: engines are added, load, crash, hang, restart, drain and go, in front
//! of a real Envoy whose endpoints change with them. Shared by `scripts/life` and its abridged test.
//!
//! | question | module |
//! | --- | --- |
//! | what is there, and what can be done to it? | [`site`] |
//! | a whole run, and what became of it | [`run`] |
//! | what happens when? | [`story`] |
//! | who asks what, how often? | [`traffic`] |
//! | how is it, second by second? | [`watch`] |
//! | could a failed request have been saved? | [`verdict`] |

pub mod run;
pub mod site;
pub mod story;
pub mod traffic;
pub mod verdict;
pub mod watch;
