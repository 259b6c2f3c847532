//! Messages that replace each other: what waits is bounded by how many things there are, not by how often they change.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// For any number of senders and one receiver.
pub struct Inbox<K, V> {
    waiting: Mutex<Waiting<K, V>>,
    notify: Notify,
}

struct Waiting<K, V> {
    /// In the order in which they began to wait.
    keys: VecDeque<K>,
    values: HashMap<K, V>,
}

impl<K, V> Default for Inbox<K, V> {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                keys: VecDeque::new(),
                values: HashMap::new(),
            }),
            notify: Notify::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, V> Inbox<K, V> {
    fn waiting(&self) -> MutexGuard<'_, Waiting<K, V>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message takes the place of the one that waits under its key.
    pub fn put(&self, key: K, value: V) {
        self.merge(key, |_| value);
    }

    /// Makes one message out of the new one and that which waits under its key.
    pub fn merge(&self, key: K, make: impl FnOnce(Option<V>) -> V) {
        {
            let mut waiting = self.waiting();
            let value = make(waiting.values.remove(&key));
            if waiting.values.len() == waiting.keys.len() {
                waiting.keys.push_back(key.clone());
            }
            waiting.values.insert(key, value);
        }
        self.notify.notify_one();
    }

    pub fn try_take(&self) -> Option<V> {
        let mut waiting = self.waiting();
        let key = waiting.keys.pop_front()?;
        waiting.values.remove(&key)
    }

    /// The next message, as soon as there is one. Nothing is lost if the future is dropped.
    pub async fn take(&self) -> V {
        loop {
            if let Some(value) = self.try_take() {
                return value;
            }
            self.notify.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_message_of_each_key_is_taken_in_order_of_arrival() {
        let inbox = Inbox::default();
        for round in 0..1_000 {
            inbox.put("a", round);
            inbox.put("b", -round);
        }
        inbox.merge("a", |old| old.unwrap_or_default() + 1);
        assert_eq!(inbox.waiting().keys.len(), 2, "two things, two messages");
        assert_eq!((inbox.take().await, inbox.take().await), (1_000, -999));
        assert_eq!(inbox.try_take(), None);
        let (taken, ()) = tokio::join!(inbox.take(), async {
            tokio::task::yield_now().await;
            inbox.put("a", 7);
        });
        assert_eq!(taken, 7);
    }
}
