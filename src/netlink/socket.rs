//! The one socket: requests with an acknowledgement, dumps, and raw batches.
//!
//! Calls block for as long as the kernel needs (micro- to milliseconds; a batch of thousands of
//! rules may take seconds), so an async caller uses a blocking thread.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use crate::message::{Attributes, Message, Messages, Writer, string_of, u32_of};
use crate::{Error, Namespace, namespace};

pub const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
pub const ACK: u16 = libc::NLM_F_ACK as u16;
pub const DUMP: u16 = libc::NLM_F_DUMP as u16;
pub const CREATE: u16 = libc::NLM_F_CREATE as u16;
pub const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
pub const REPLACE: u16 = libc::NLM_F_REPLACE as u16;
pub const APPEND: u16 = libc::NLM_F_APPEND as u16;

const KIND_ERROR: u16 = libc::NLMSG_ERROR as u16;
const KIND_DONE: u16 = libc::NLMSG_DONE as u16;
const FLAG_CAPPED: u16 = 0x100;
const FLAG_ACK_TLVS: u16 = 0x200;
const ATTR_MESSAGE: u16 = 1;
const RECEIVE_LEN: usize = 128 * 1024;
const BUFFER_LEN: libc::c_int = 8 << 20;
const TIMEOUT_SECS: libc::time_t = 120;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Route,
    Netfilter,
}

#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    received: Vec<u8>,
}

/// What a message of kind `NLMSG_ERROR` says.
pub(crate) struct Answer {
    pub sequence: u32,
    pub errno: i32,
    pub detail: Option<String>,
}

impl Socket {
    /// A socket in the calling thread's network namespace.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        let number = match protocol {
            Protocol::Route => libc::NETLINK_ROUTE,
            Protocol::Netfilter => libc::NETLINK_NETFILTER,
        };
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: plain system call; the descriptor is owned from here on.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, number) };
        if fd < 0 {
            return Err(Error::socket("open"));
        }
        // SAFETY: `fd` was just returned to us and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = Self {
            fd,
            sequence: 0,
            received: vec![0; RECEIVE_LEN],
        };
        socket.configure()?;
        Ok(socket)
    }

    /// A socket in another namespace; the calling thread does not move.
    pub fn open_in(namespace: &Namespace, protocol: Protocol) -> Result<Self, Error> {
        namespace::run_in(namespace.as_fd(), Path::new("(socket)"), || {
            Self::open(protocol)
        })?
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// One request; the kernel's acknowledgement decides. `what` names it in an error.
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        what: impl FnOnce() -> String,
        body: impl FnOnce(&mut Writer),
    ) -> Result<(), Error> {
        let sequence = self.next_sequence();
        let mut writer = Writer::new();
        writer.message(kind, flags | REQUEST | ACK, sequence, body);
        self.send(writer.as_bytes())?;
        loop {
            let length = self.receive()?;
            for message in Messages(&self.received[..length]) {
                if message.sequence != sequence {
                    continue;
                }
                if let Some(answer) = answer_of(&message) {
                    return answer.into_result(what);
                }
            }
        }
    }

    /// Everything of one sort; `each` sees every message of the answer.
    pub fn dump(
        &mut self,
        kind: u16,
        what: impl FnOnce() -> String,
        body: impl FnOnce(&mut Writer),
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<(), Error> {
        let sequence = self.next_sequence();
        let mut writer = Writer::new();
        writer.message(kind, REQUEST | DUMP, sequence, body);
        self.send(writer.as_bytes())?;
        loop {
            let length = self.receive()?;
            for message in Messages(&self.received[..length]) {
                if message.sequence != sequence {
                    continue;
                }
                match message.kind {
                    KIND_DONE => return done_result(&message, what),
                    KIND_ERROR => match answer_of(&message) {
                        Some(answer) => return answer.into_result(what),
                        None => return Err(Error::Malformed("short error message")),
                    },
                    _ => each(&message),
                }
            }
        }
    }

    /// One request whose answer is one message (`NLM_F_REQUEST` without dump).
    pub fn fetch<T>(
        &mut self,
        kind: u16,
        what: impl FnOnce() -> String,
        body: impl FnOnce(&mut Writer),
        read: impl FnOnce(&Message<'_>) -> T,
    ) -> Result<T, Error> {
        let sequence = self.next_sequence();
        let mut writer = Writer::new();
        writer.message(kind, REQUEST, sequence, body);
        self.send(writer.as_bytes())?;
        loop {
            let length = self.receive()?;
            for message in Messages(&self.received[..length]) {
                if message.sequence != sequence {
                    continue;
                }
                return match answer_of(&message) {
                    None => Ok(read(&message)),
                    Some(answer) => match answer.into_result(what) {
                        Err(error) => Err(error),
                        Ok(()) => Err(Error::Malformed("acknowledgement instead of an answer")),
                    },
                };
            }
        }
    }

    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    /// Reserves `count` consecutive sequence numbers and returns the first.
    pub(crate) fn reserve_sequences(&mut self, count: u32) -> u32 {
        if self.sequence.checked_add(count + 1).is_none() {
            self.sequence = 0;
        }
        let first = self.sequence + 1;
        self.sequence += count;
        first
    }

    /// Sends one datagram, enlarging the socket's buffer where it is too small for it.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let wanted = libc::c_int::try_from(bytes.len() + (64 << 10)).unwrap_or(libc::c_int::MAX);
        if wanted > BUFFER_LEN {
            self.force_buffer(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, wanted)?;
        }
        loop {
            // SAFETY: the buffer outlives the call.
            let sent = unsafe {
                libc::send(
                    self.fd.as_raw_fd(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    libc::MSG_NOSIGNAL,
                )
            };
            if sent == bytes.len() as isize {
                return Ok(());
            }
            if sent >= 0 {
                return Err(Error::Malformed("a datagram was sent in part"));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(Error::Socket {
                    what: "send",
                    source: error,
                });
            }
        }
    }

    /// Receives one datagram into the socket's own buffer and returns its length.
    pub(crate) fn receive(&mut self) -> Result<usize, Error> {
        loop {
            // SAFETY: the buffer is valid for its length.
            let received = unsafe {
                libc::recv(
                    self.fd.as_raw_fd(),
                    self.received.as_mut_ptr().cast(),
                    self.received.len(),
                    libc::MSG_TRUNC,
                )
            };
            if received >= 0 {
                let length = received as usize;
                if length > self.received.len() {
                    return Err(Error::Malformed("a datagram larger than our buffer"));
                }
                return Ok(length);
            }
            let source = io::Error::last_os_error();
            match source.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::ENOBUFS) => return Err(Error::Overrun),
                _ => {
                    return Err(Error::Socket {
                        what: "receive",
                        source,
                    });
                }
            }
        }
    }

    pub(crate) fn datagram(&self, length: usize) -> &[u8] {
        &self.received[..length]
    }

    fn configure(&self) -> Result<(), Error> {
        self.force_buffer(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, BUFFER_LEN)?;
        self.force_buffer(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, BUFFER_LEN)?;
        let timeout = libc::timeval {
            tv_sec: TIMEOUT_SECS,
            tv_usec: 0,
        };
        self.option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout)?;
        // Both only make errors clearer or cheaper; an old kernel without them still works.
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            let _unsupported = self.option(libc::SOL_NETLINK, option, &1i32);
        }
        // SAFETY: an all-zero sockaddr_nl is valid; the kernel picks the port.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        // SAFETY: pointer and length describe `address`.
        let bound = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_nl>() as u32,
            )
        };
        if bound != 0 {
            return Err(Error::socket("bind"));
        }
        Ok(())
    }

    /// The forced form needs CAP_NET_ADMIN in the first user namespace; the plain one is capped.
    fn force_buffer(
        &self,
        force: libc::c_int,
        plain: libc::c_int,
        length: libc::c_int,
    ) -> Result<(), Error> {
        if self.option(libc::SOL_SOCKET, force, &length).is_ok() {
            return Ok(());
        }
        self.option(libc::SOL_SOCKET, plain, &length)
    }

    fn option<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> Result<(), Error> {
        // SAFETY: pointer and length describe `value`.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                (&raw const *value).cast(),
                size_of::<T>() as u32,
            )
        };
        if result != 0 {
            return Err(Error::socket("set option"));
        }
        Ok(())
    }
}

impl Answer {
    pub(crate) fn into_result(self, what: impl FnOnce() -> String) -> Result<(), Error> {
        if self.errno == 0 {
            return Ok(());
        }
        Err(Error::Refused {
            what: what(),
            errno: io::Error::from_raw_os_error(self.errno),
            detail: self.detail,
        })
    }
}

/// Reads an acknowledgement or error; `None` for any other message.
pub(crate) fn answer_of(message: &Message<'_>) -> Option<Answer> {
    if message.kind != KIND_ERROR {
        return None;
    }
    let errno = -(u32_of(message.payload.get(..4)?) as i32);
    Some(Answer {
        sequence: message.sequence,
        errno,
        detail: detail_of(message),
    })
}

/// The kernel's own words, which follow the header of the message that failed.
fn detail_of(message: &Message<'_>) -> Option<String> {
    if message.flags & FLAG_ACK_TLVS == 0 {
        return None;
    }
    let original = message.payload.get(4..)?;
    let original_len = if message.flags & FLAG_CAPPED != 0 {
        crate::message::HEADER_LEN
    } else {
        (u32_of(original) as usize + 3) & !3
    };
    Attributes(original.get(original_len..)?)
        .find(ATTR_MESSAGE)
        .map(string_of)
}

fn done_result(message: &Message<'_>, what: impl FnOnce() -> String) -> Result<(), Error> {
    let errno = -(u32_of(message.payload) as i32);
    Answer {
        sequence: message.sequence,
        errno: errno.max(0),
        detail: None,
    }
    .into_result(what)
}
