//! Sets of numbers of which each is given out once.

use std::collections::HashSet;
use std::net::IpAddr;

use rand::Rng;

/// Attempts to guess a free number before searching for one.
const GUESSES: usize = 8;

/// An address range: network address and prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub network: IpAddr,
    pub prefix: u8,
}

impl Range {
    /// The number of addresses, at most 2^32 of a larger range are used.
    fn size(self) -> u64 {
        let bits = match self.network {
            IpAddr::V4(_) => 32 - self.prefix.min(32),
            IpAddr::V6(_) => 128 - self.prefix.min(128),
        };
        1_u64 << bits.min(32)
    }

    /// The address `offset` above the network address.
    pub fn at(self, offset: u64) -> IpAddr {
        match self.network {
            IpAddr::V4(network) => {
                let offset = u32::try_from(offset).unwrap_or(u32::MAX);
                IpAddr::V4(u32::from(network).wrapping_add(offset).into())
            }
            IpAddr::V6(network) => {
                IpAddr::V6(u128::from(network).wrapping_add(offset.into()).into())
            }
        }
    }

    fn offset(self, address: IpAddr) -> Option<u64> {
        let difference = match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                u64::from(u32::from(address).checked_sub(u32::from(network))?)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                u64::try_from(u128::from(address).checked_sub(u128::from(network))?).ok()?
            }
            _ => return None,
        };
        (difference < self.size()).then_some(difference)
    }
}

/// The addresses of one service range.
pub struct AddressPool {
    range: Range,
    used: HashSet<IpAddr>,
}

impl AddressPool {
    pub fn new(range: Range) -> Self {
        Self {
            range,
            used: HashSet::new(),
        }
    }

    pub fn family(&self) -> &'static str {
        match self.range.network {
            IpAddr::V4(_) => "IPv4",
            IpAddr::V6(_) => "IPv6",
        }
    }

    /// The network address is never given out, nor is an IPv4 broadcast address.
    fn is_usable(&self, offset: u64) -> bool {
        offset != 0 && (self.range.network.is_ipv6() || offset != self.range.size() - 1)
    }

    /// The lower part of the range is left for addresses that are asked for by name.
    fn dynamic_start(&self) -> u64 {
        let size = self.range.size();
        if size < 32 {
            1
        } else {
            (size / 16).clamp(16, 256)
        }
    }

    pub fn occupy(&mut self, address: IpAddr) {
        if self.range.offset(address).is_some() {
            self.used.insert(address);
        }
    }

    pub fn release(&mut self, address: IpAddr) {
        self.used.remove(&address);
    }

    /// Takes one address by name.
    pub fn take(&mut self, address: IpAddr) -> Result<(), &'static str> {
        let usable = self
            .range
            .offset(address)
            .is_some_and(|offset| self.is_usable(offset));
        if !usable {
            return Err("the provided network does not match the current range");
        }
        if self.used.insert(address) {
            Ok(())
        } else {
            Err("provided IP is already allocated")
        }
    }

    /// Takes any address: a random one of the upper part, else the first free one.
    pub fn take_any(&mut self) -> Option<IpAddr> {
        let (start, size) = (self.dynamic_start(), self.range.size());
        let mut random = rand::rng();
        let guesses = (0..GUESSES).map(|_| random.random_range(start.min(size - 1)..size));
        let all = (start..size).chain(1..start);
        let offset = guesses.chain(all).find(|&offset| {
            self.is_usable(offset) && !self.used.contains(&self.range.at(offset))
        })?;
        let address = self.range.at(offset);
        self.used.insert(address);
        Some(address)
    }
}

/// The node ports.
pub struct PortPool {
    first: u16,
    last: u16,
    used: HashSet<u16>,
}

impl PortPool {
    pub fn new(first: u16, last: u16) -> Self {
        Self {
            first,
            last: last.max(first),
            used: HashSet::new(),
        }
    }

    pub fn occupy(&mut self, port: u16) {
        self.used.insert(port);
    }

    pub fn release(&mut self, port: u16) {
        self.used.remove(&port);
    }

    pub fn take(&mut self, port: u16) -> Result<(), String> {
        if !(self.first..=self.last).contains(&port) {
            return Err(format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                self.first, self.last
            ));
        }
        if self.used.insert(port) {
            Ok(())
        } else {
            Err("provided port is already allocated".to_owned())
        }
    }

    /// The lower part is left for ports that are asked for by number.
    fn dynamic_start(&self) -> u16 {
        let size = self.last - self.first;
        let offset = if size < 32 {
            0
        } else {
            (size / 32).clamp(16, 128)
        };
        self.first + offset
    }

    pub fn take_any(&mut self) -> Option<u16> {
        let start = self.dynamic_start();
        let mut random = rand::rng();
        let guesses = (0..GUESSES).map(|_| random.random_range(start..=self.last));
        let port = guesses
            .chain(start..=self.last)
            .chain(self.first..start)
            .find(|port| !self.used.contains(port))?;
        self.used.insert(port);
        Some(port)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_are_given_once() {
        let range = Range {
            network: "10.0.0.0".parse().unwrap(),
            prefix: 29,
        };
        let mut pool = AddressPool::new(range);
        pool.take("10.0.0.1".parse().unwrap()).unwrap();
        assert!(pool.take("10.0.0.1".parse().unwrap()).is_err());
        assert!(pool.take("10.0.1.1".parse().unwrap()).is_err());
        assert!(pool.take("10.0.0.7".parse().unwrap()).is_err(), "broadcast");
        let rest: HashSet<IpAddr> = std::iter::from_fn(|| pool.take_any()).collect();
        assert_eq!(rest.len(), 5);
        pool.release("10.0.0.4".parse().unwrap());
        assert_eq!(pool.take_any(), Some("10.0.0.4".parse().unwrap()));
    }

    #[test]
    fn ports_are_given_once() {
        let mut pool = PortPool::new(30000, 30002);
        assert!(pool.take(80).unwrap_err().contains("30000-30002"));
        pool.take(30001).unwrap();
        let mut rest = [pool.take_any().unwrap(), pool.take_any().unwrap()];
        rest.sort_unstable();
        assert_eq!(rest, [30000, 30002]);
        assert_eq!(pool.take_any(), None);
    }
}
