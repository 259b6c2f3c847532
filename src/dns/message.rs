//! From bytes to a question, from a reply to bytes that fit.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::Record;

use crate::answer::Reply;

/// The largest reply sent over UDP: what crosses any network unfragmented.
const LARGEST_DATAGRAM: u16 = 1232;
const SMALLEST_DATAGRAM: u16 = 512;
const LARGEST_STREAM: usize = 65535;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    Udp,
    Tcp,
}

/// A query that can be answered.
#[derive(Debug, Clone)]
pub struct Question {
    pub message: Message,
    pub query: Query,
    pub via: Via,
}

impl Question {
    /// Or the bytes to send back at once, or nothing for what deserves no answer.
    pub fn parse(bytes: &[u8], via: Via) -> Result<Self, Option<Vec<u8>>> {
        let message = match Message::from_vec(bytes) {
            Ok(message) => message,
            Err(error) => {
                tracing::debug!(%error, "a query cannot be read");
                return Err(malformed(bytes));
            }
        };
        if message.metadata.message_type != MessageType::Query {
            return Err(None);
        }
        let refused = |code| {
            Err(encode(
                &empty_reply(&message, code),
                usize::from(LARGEST_DATAGRAM),
            ))
        };
        if message.metadata.op_code != OpCode::Query {
            return refused(ResponseCode::NotImp);
        }
        if message
            .edns
            .as_ref()
            .is_some_and(|edns| edns.version() != 0)
        {
            return refused(ResponseCode::BADVERS);
        }
        let [query] = message.queries.as_slice() else {
            return refused(ResponseCode::FormErr);
        };
        let query = query.clone();
        Ok(Self {
            message,
            query,
            via,
        })
    }

    fn limit(&self) -> usize {
        match (self.via, &self.message.edns) {
            (Via::Tcp, _) => LARGEST_STREAM,
            (Via::Udp, Some(edns)) => usize::from(
                edns.max_payload()
                    .clamp(SMALLEST_DATAGRAM, LARGEST_DATAGRAM),
            ),
            (Via::Udp, None) => usize::from(SMALLEST_DATAGRAM),
        }
    }

    pub fn reply(&self, reply: Reply) -> Option<Vec<u8>> {
        let mut message = empty_reply(&self.message, reply.code);
        message.metadata.authoritative = true;
        message.answers = reply.answers;
        message.authorities = reply.authorities;
        message.additionals = reply.additionals;
        encode(&message, self.limit())
    }

    pub fn fail(&self, code: ResponseCode) -> Option<Vec<u8>> {
        encode(&empty_reply(&self.message, code), self.limit())
    }

    /// A relayed reply under the id of whoever asked, cut to what fits.
    pub fn relay(&self, mut reply: Vec<u8>) -> Option<Vec<u8>> {
        let [high, low, ..] = reply.as_mut_slice() else {
            return None;
        };
        [*high, *low] = self.message.metadata.id.to_be_bytes();
        if reply.len() <= self.limit() {
            return Some(reply);
        }
        encode(&Message::from_vec(&reply).ok()?, self.limit())
    }
}

/// The header of something unreadable is enough for a format error.
fn malformed(bytes: &[u8]) -> Option<Vec<u8>> {
    const RESPONSE: u8 = 0x80;
    let [high, low, flags, ..] = *bytes else {
        return None;
    };
    if flags & RESPONSE != 0 || bytes.len() < 12 {
        return None;
    }
    let id = u16::from_be_bytes([high, low]);
    encode(
        &Message::error_msg(id, OpCode::Query, ResponseCode::FormErr),
        usize::from(SMALLEST_DATAGRAM),
    )
}

fn empty_reply(request: &Message, code: ResponseCode) -> Message {
    let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
    reply.metadata.recursion_desired = request.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.metadata.response_code = code;
    reply.queries = request.queries.clone();
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(LARGEST_DATAGRAM);
        reply.edns = Some(edns);
    }
    reply
}

/// What does not fit is left out: first what was not asked for, then answers, saying so.
fn encode(message: &Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = to_bytes(message)?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    let mut shorter = message.clone();
    shorter.additionals.clear();
    let bytes = to_bytes(&shorter)?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    shorter.metadata.truncation = true;
    let answers = std::mem::take(&mut shorter.answers);
    fit(&mut shorter, &answers, limit)
}

/// As many answers as fit, found by halving.
fn fit(message: &mut Message, answers: &[Record], limit: usize) -> Option<Vec<u8>> {
    let (mut fits, mut too_many) = (0, answers.len());
    while fits + 1 < too_many {
        let middle = usize::midpoint(fits, too_many);
        message.answers = answers[..middle].to_vec();
        if to_bytes(message)?.len() <= limit {
            fits = middle
        } else {
            too_many = middle
        }
    }
    message.answers = answers[..fits].to_vec();
    to_bytes(message)
}

fn to_bytes(message: &Message) -> Option<Vec<u8>> {
    match message.to_vec() {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            tracing::warn!(%error, "cannot write a DNS reply");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{Name, RData, RecordType};

    use super::*;

    fn question(payload: Option<u16>, via: Via) -> Question {
        let mut message = Message::query();
        message.metadata.id = 7;
        message.add_query(Query::query(
            Name::from_ascii("web.ns.svc.cluster.local.").unwrap(),
            RecordType::A,
        ));
        if let Some(payload) = payload {
            let mut edns = Edns::new();
            edns.set_max_payload(payload);
            message.edns = Some(edns);
        }
        Question::parse(&message.to_vec().unwrap(), via).unwrap()
    }

    fn long_reply() -> Reply {
        let name = Name::from_ascii("web.ns.svc.cluster.local.").unwrap();
        let answers = (0..200)
            .map(|last| Record::from_rdata(name.clone(), 5, RData::A(A::new(10, 0, 0, last))));
        Reply {
            code: ResponseCode::NoError,
            answers: answers.collect(),
            authorities: vec![],
            additionals: vec![],
            chase: None,
        }
    }

    #[test]
    fn long_replies_are_cut_to_what_the_asker_takes() {
        for (payload, via, limit, cut) in [
            (None, Via::Udp, 512, true),
            (Some(4096), Via::Udp, 1232, true),
            (Some(100), Via::Udp, 512, true),
            (None, Via::Tcp, 65535, false),
        ] {
            let bytes = question(payload, via).reply(long_reply()).unwrap();
            let reply = Message::from_vec(&bytes).unwrap();
            assert!(
                bytes.len() <= limit && (!cut || bytes.len() > limit - 40),
                "{} of {limit}",
                bytes.len()
            );
            assert_eq!((reply.metadata.truncation, reply.metadata.id), (cut, 7));
            assert_eq!(reply.edns.is_some(), payload.is_some());
            assert!(reply.metadata.authoritative && !reply.answers.is_empty());
        }
    }

    #[test]
    fn nonsense_gets_a_format_error_and_responses_get_nothing() {
        let mut bytes = vec![0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 200];
        let reply = Question::parse(&bytes, Via::Udp).unwrap_err().unwrap();
        let reply = Message::from_vec(&reply).unwrap();
        assert_eq!(
            (reply.metadata.id, reply.metadata.response_code),
            (9, ResponseCode::FormErr)
        );
        bytes[2] |= 0x80;
        assert_eq!(Question::parse(&bytes, Via::Udp).unwrap_err(), None);
        assert_eq!(Question::parse(&[1], Via::Udp).unwrap_err(), None);
    }

    #[test]
    fn unknown_edns_versions_and_operations_are_refused() {
        let mut message = Message::query();
        message.add_query(Query::query(Name::root(), RecordType::A));
        let code = |message: &Message| {
            let reply = Question::parse(&message.to_vec().unwrap(), Via::Udp)
                .unwrap_err()
                .unwrap();
            Message::from_vec(&reply).unwrap().metadata.response_code
        };
        message.metadata.op_code = OpCode::Notify;
        assert_eq!(code(&message), ResponseCode::NotImp);
        message.metadata.op_code = OpCode::Query;
        let mut edns = Edns::new();
        edns.set_version(1);
        message.edns = Some(edns);
        assert_eq!(u16::from(code(&message)), u16::from(ResponseCode::BADVERS));
    }

    #[test]
    fn a_relayed_reply_carries_the_id_of_the_asker() {
        let mut reply = Message::response(99, OpCode::Query);
        reply.add_query(Query::query(
            Name::from_ascii("example.com.").unwrap(),
            RecordType::A,
        ));
        let bytes = question(None, Via::Udp)
            .relay(reply.to_vec().unwrap())
            .unwrap();
        assert_eq!(Message::from_vec(&bytes).unwrap().metadata.id, 7);
    }
}
