//! Counts the agent's requests to its server, as upstream's clients do.

use std::sync::Arc;

use super::{
    Counters,
    table::{CLIENT_DURATION, CLIENT_RECEIVED, CLIENT_REQUESTS, CLIENT_SENT},
};
use podwright_client::{Client, Measured};

/// The same client with its requests counted.
pub fn counted(client: &Client, counters: &Arc<Counters>) -> Client {
    let counters = counters.clone();
    client.counted(move |told| {
        counters.add(&CLIENT_REQUESTS, &[told.code, told.host, told.method]);
        let Some(Measured { took, sent, received }) = &told.measured else { return };
        let labels = [told.method, told.host];
        counters.observe(&CLIENT_DURATION, &labels, *took);
        if let Some(sent) = sent {
            counters.measure(&CLIENT_SENT, &labels, *sent as f64);
        }
        if let Some(received) = received {
            counters.measure(&CLIENT_RECEIVED, &labels, *received as f64);
        }
    })
}
