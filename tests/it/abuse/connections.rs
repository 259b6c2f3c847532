//! Connections that say nothing, nonsense, or too little.

use std::time::Duration;

use rand::Rng as _;
use rand::rngs::SmallRng;
use tokio::io::AsyncWriteExt as _;

use super::raw::{self, Door};
use super::{Tally, mutate};
use crate::rows;
use crate::support::process::ADMIN_TOKEN;

/// HTTP/1.1 that is none, and HTTP/1.1 that is too much.
pub async fn broken_http1(door: &Door, random: &mut SmallRng, count: usize) -> Tally {
    let valid = format!(
        "POST /api/v1/namespaces/{}/configmaps?dryRun=All HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: 27\r\nConnection: close\r\n\r\n{{\"metadata\":{{\"name\":\"x1\"}}}}",
        rows::NAMESPACE
    );
    let get = |headers: &str| {
        format!("GET /version HTTP/1.1\r\nHost: a\r\n{headers}Connection: close\r\n\r\n")
    };
    let mut inputs: Vec<(Vec<u8>, &[u16])> = vec![
        (get("").into_bytes(), &[200]),
        (
            get(&format!("X: {}\r\n", "y".repeat(2 << 20))).into_bytes(),
            &[431, 400, 0],
        ),
        (
            get(&"X-Y: z\r\n".repeat(20_000)).into_bytes(),
            &[431, 400, 0],
        ),
        (
            get("Authorization: Bearer \u{7f}\r\n").into_bytes(),
            &[400, 401],
        ),
        (
            get("Authorization: Basic !!!\r\n").into_bytes(),
            &[200, 401],
        ),
        (
            get("Content-Length: 5\r\nContent-Length: 6\r\n").into_bytes(),
            &[400, 0],
        ),
        (get("Content-Length: -1\r\n").into_bytes(), &[400, 0]),
        (
            get("Transfer-Encoding: gzip, nonsense\r\n").into_bytes(),
            &[400, 0, 501],
        ),
        (
            get("Upgrade: websocket\r\nConnection: upgrade\r\n").into_bytes(),
            &[200, 400],
        ),
        (get("Accept: \u{0}\r\n").into_bytes(), &[400, 0]),
        (
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(1 << 20)).into_bytes(),
            &[414, 400, 431, 0],
        ),
        (
            b"GET /version HTTP/9.9\r\nHost: a\r\n\r\n".to_vec(),
            &[400, 505, 0],
        ),
        (
            b"GET http://other/version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(),
            &[200],
        ),
        (b"PRI * HTTP/2.0\r\n\r\n".to_vec(), &[0, 400]),
        (
            b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(),
            &[403, 401, 404, 405],
        ),
        (vec![0; 100_000], &[400, 0]),
        (vec![b'A'; 2 << 20], &[400, 414, 431, 0]),
    ];
    let any: &[u16] = &[];
    inputs.extend((0..count).map(|_| (mutate::scrambled(valid.as_bytes(), random), any)));
    let mut tally = Tally::default();
    for (bytes, expected) in inputs {
        let (answer, _) = raw::send1(door, &bytes, Duration::from_millis(300)).await;
        let code = raw::code(&answer);
        tally.count(code);
        let bad = code >= 500 && code != 501 && code != 505;
        if bad || (!expected.is_empty() && !expected.contains(&code)) {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
            tally.wrong.push(format!("{text:?}: {code}"));
        }
    }
    tally
}

/// Frames of HTTP/2 that fit nowhere.
pub async fn broken_http2(door: &Door, random: &mut SmallRng, count: usize) -> Tally {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&size[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let mut tally = Tally::default();
    for number in 0..count {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(4, 0, 0, &[]));
        for _ in 0..random.random_range(1..20) {
            let mut payload = vec![0; random.random_range(0..64)];
            random.fill(&mut payload[..]);
            let kind = random.random_range(0..12);
            bytes.extend(frame(
                kind,
                random.random(),
                random.random_range(0..8),
                &payload,
            ));
        }
        match number % 10 {
            // A thousand streams opened and reset at once.
            0 => {
                for stream in 0..1_000_u32 {
                    bytes.extend(frame(
                        1,
                        5,
                        stream * 2 + 1,
                        &[0x82, 0x87, 0x84, 0x41, 0x01, b'a'],
                    ));
                    bytes.extend(frame(3, 0, stream * 2 + 1, &[0, 0, 0, 8]));
                }
            }
            // Headers that never end.
            1 => {
                bytes.extend(frame(1, 0, 1, &[0x82]));
                for _ in 0..2_000 {
                    bytes.extend(frame(9, 0, 1, &[0x40, 1, b'a', 1, b'b']));
                }
            }
            2 => bytes.extend(vec![random.random::<u8>(); 20_000]),
            // Pings and settings without end.
            3 => (0..5_000).for_each(|_| bytes.extend(frame(6, 0, 0, &[0; 8]))),
            4 => (0..5_000).for_each(|_| bytes.extend(frame(4, 0, 0, &[]))),
            _ => {}
        }
        let (_, closed) = raw::send2(door, &bytes, Duration::from_millis(200)).await;
        tally.count(if closed { 0 } else { 1 });
    }
    tally
}

/// Connections that send a little and then nothing; how many were closed within their time.
pub async fn slow_clients(door: Door, count: usize) -> (usize, usize) {
    let head = b"GET /version HTTP/1.1\r\nHost: a\r\nX-Slow: ";
    let mut tasks = Vec::new();
    for _ in 0..count {
        let door = door.clone();
        tasks.push(tokio::spawn(async move {
            let mut stream = door.http1().await.unwrap();
            stream.write_all(head).await.unwrap();
            // A byte now and then does not help: the whole head has a limit.
            for _ in 0..45 {
                let (_, closed) = raw::answer(&mut stream, Duration::from_secs(1)).await;
                if closed || stream.write_all(b"a").await.is_err() {
                    return true;
                }
            }
            false
        }));
    }
    let mut closed = 0;
    for task in tasks {
        closed += usize::from(task.await.unwrap());
    }
    (closed, count)
}

/// Opens many connections that do nothing and keeps them until the handle is dropped.
pub async fn idle_connections(
    door: &Door,
    tls: usize,
    plain: usize,
) -> (Vec<raw::Stream>, Vec<tokio::net::TcpStream>) {
    use futures_util::StreamExt as _;
    let open_tls = futures_util::stream::iter(0..tls)
        .map(|_| door.http1())
        .buffer_unordered(32)
        .filter_map(|stream| std::future::ready(stream.ok()))
        .collect::<Vec<_>>();
    let open_plain = futures_util::stream::iter(0..plain)
        .map(|_| door.tcp())
        .buffer_unordered(64)
        .filter_map(|stream| std::future::ready(stream.ok()))
        .collect::<Vec<_>>();
    (open_tls.await, open_plain.await)
}
