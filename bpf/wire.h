/* What the programs and the Go side share: the maps' values and the records in
 * the ring buffer. record.go, read.go and streams.go decode these; a test
 * compares the sizes.
 *
 * All numbers are little endian, as the machine's. A map's value may be written
 * by user space at any time (config, rate) or read by it at any time (stream),
 * so a program copies a config once per segment, and user space takes a stream's
 * totals as they are: single words never tear, but two of them may be of
 * different moments.
 *
 * This header has types and constants only. The line numbers of functions are
 * part of the compiled object; those of types are not. */
#pragma once
#include "kernel.h"

#define BUF 256        /* bytes kept of a meta or command frame that straddles segments */
#define OUT_FLUSH 16384 /* a batch is handed over when it is this long */
#define CHUNK 8192      /* at most this much of a frame in one record */
#define OUT_SIZE (OUT_FLUSH + CHUNK + 512)

/* The settings, as Capture.SetSampling writes them: Sampling in sampling.go and
 * parts of Options. A flag is 0 or 1. */
struct config {
	/* Sampling.Window and OneIn: one in one_in windows of window timestamps is
	 * sampled. A window of 0 means that no settings were written yet. */
	__u32 window, one_in;
	__u8 answer_keys, skip_loopback_ingress;
	/* Of what is received, only the metas of answers and of control messages
	 * are copied: IngressMetas. */
	__u8 ingress_metas, pad;
	/* The reader is woken each time so many bytes have been written; 0: never. */
	__u32 wake_bytes;
	/* How often a rest began or ended: while it is odd, streams that may rest are
	 * not looked at. */
	__u32 rests;
};

/* How the messages of one stream are sampled, in place of config: one in
 * 1 << shift windows of window timestamps. Written by Capture.SetRate. */
struct rate {
	__u32 window, shift;
	/* 0 or 1, of a stream that is sent: see config.rests. It is for both directions. */
	__u32 may_rest;
};

/* The addresses of a socket, as in Record.Endpoints: local is the watched
 * process's, whatever the direction. IPv4 addresses are in the first four bytes.
 * Ports are in host order. */
struct endpoints {
	__u8 local[16], peer[16];
	__u16 local_port, peer_port;
	__u8 version, pad[3];
};

/* The lowest bit of a stream's key; the others are the socket's cookie. */
#define EGRESS 0
#define INGRESS 1

/* Where in a ZMTP stream the next byte lies. The transitions are:
 *
 *   GREETING -> HEADER       the greeting was read
 *   HEADER   -> PREFIX       a meta or command frame begins
 *   HEADER   -> BODY         any other frame begins
 *   PREFIX   -> BODY         its first BUF bytes, or all of them, were judged
 *   BODY     -> HEADER       the frame has ended
 *   any      -> UNSYNCED     bytes are missing, or do not make sense
 *   UNSYNCED -> HEADER       a plausible beginning was found (stream.tentative)
 */
enum phase {
	GREETING, /* inside the 64 bytes that open a ZMTP stream */
	HEADER,   /* at, or inside, a frame's flags and length */
	PREFIX,   /* inside the first BUF bytes of a meta or command frame */
	BODY,     /* inside a frame that is stepped over or copied in chunks */
	UNSYNCED, /* looking for a message's beginning */
};

/* The dialects that judge() tells apart: protobuf metas of any age, and
 * BytePS's C structure. */
enum dialect { UNKNOWN, DMLC, BYTEPS };

/* One direction of one connection. The totals come first: user space reads
 * them.
 *
 * A run of a program owns the entry while busy is 1; it is claimed by an atomic
 * compare-and-exchange, because two segments of one socket can be handled on two
 * processors. A segment that finds it claimed is counted as lost, never waited
 * for. */
struct stream {
	__u64 segments, bytes, messages, data_frames, commands;
	__u64 missed, retransmitted, gap_bytes, lost_batches, sampled;
	__u64 rested; /* bytes that passed in a rest, and until the boundary was found again */
	/* late: its beginning was not seen. opened: an OPEN record was written.
	 * tentative: 1 while a possible beginning is being checked, 2 when the first
	 * message after it was whole. frame: number of the frame in its message, 0 to
	 * 3. more: the frame's header announced another one. */
	__u8 phase, dialect, late, closed, opened, tentative, frame, more;
	struct endpoints ends;
	/* Private to the programs from here on. next_seq: the sequence number that
	 * continues the stream. */
	__u32 busy, next_seq;
	/* batch: number of batches so far, lost ones included. tries: segments that
	 * were searched for a beginning in vain. */
	__u32 batch, tries;
	/* remaining: bytes of the frame that have not passed yet, of frame_len.
	 * lengths: of the message's frames so far. */
	__u64 remaining, frame_len, lengths[4], message_bytes;
	/* kind: of the frame, from enum kind. want: which of the frames 1 to 3 are
	 * copied (WANT_KEYS and so on). incomplete: bytes of the message are missing.
	 * header_have: bytes in header. greeted: READY has passed. enveloped: the
	 * message began with an identity frame, see is_envelope(). */
	__u8 kind, want, want_meta, incomplete, header_have, greeted, enveloped;
	__u8 sampled_now; /* 0 no, 1 as the config says, else the stream's shift + 2 */
	__u32 buf_have; /* bytes in buf */
	/* config.rests when the boundary was known last. If it differs while the
	 * boundary is lost, a rest is why. */
	__u32 rests;
	/* A frame header that straddles segments, at most 9 bytes. */
	__u8 header[16];
	/* The beginning of a greeting, meta or command that straddles segments. Twice
	 * as long as needed, so that the verifier accepts any offset below BUF. */
	__u8 buf[2 * BUF];
};

/* A stream that is not PS-lite's. Its segments are counted under reason and not
 * looked at, except that a late one is searched again every 64 segments: it may
 * have been in the middle of a long message. */
struct foreign {
	__u32 segments;
	__u16 reason;
	__u8 late, pad;
};

/* One entry of the ring buffer: this header, then records, all of one stream and
 * one segment. A gap in the sequence shows the reader that batches did not fit. */
struct batch {
	__u64 stream; /* cookie << 1 | ingress */
	__u64 time;
	__u64 message; /* the stream's message number at the first record */
	__u32 sequence; /* of the stream's batches, lost ones too */
	__u32 size;     /* with this header */
};

/* One thing that was seen: Record in record.go. size bytes of data follow. */
struct record {
	__u8 kind, flags, frame;
	__u8 rate;     /* the stream's shift + 1, of a sampled message; 0: as the config says */
	__u16 size;    /* of the data that follow, without the padding to 8 bytes */
	__u16 message; /* since the batch's first */
	__u64 offset, length;
};

/* Kind in record.go, but for ENVELOPE, which is never written: it is the kind of
 * a frame in stream.kind. */
enum kind { OPEN = 1, COMMAND, META, KEYS, VALUES, LENS, END, UNSYNC, SYNCED, CLOSE, FOREIGN, ENVELOPE, KEY_RUN };

/* The data of a KEY_RUN: n keys, from first on, each step above the one before. */
struct key_run {
	__u64 first, step, n;
};


/* Flags in record.go. */
enum flag {
	ENDS_FRAME = 1,
	ENDS_MESSAGE = 2,
	SAMPLED = 4,
	INCOMPLETE = 8,
	LATE = 16,
	UNPARSED = 32,
	TRUNCATED = 64,
};
