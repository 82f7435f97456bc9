/* What the programs and the Go side share: maps' values and ring buffer
 * records. record.go and streams.go read these; a test compares the sizes. */
#pragma once
#include "kernel.h"

#define BUF 256        /* bytes kept of a meta or command frame that straddles segments */
#define OUT_FLUSH 16384 /* a batch is handed over when it is this long */
#define CHUNK 8192      /* at most this much of a frame in one record */
#define OUT_SIZE (OUT_FLUSH + CHUNK + 512)

struct config {
	__u32 window, one_in;
	__u32 value_bytes, values_one_in;
	__u8 sampled_metas_only, answer_keys, skip_loopback_ingress;
	__u8 ingress_metas; /* of what is received, only metas of answers and control messages are copied */
	__u8 pad[4];
	__u32 wake_bytes, pad2;
};

/* How the messages of one stream are sampled: one window in 1 << shift. */
struct rate {
	__u32 window, shift;
};

/* Socket addresses as in Record.Endpoints. */
struct endpoints {
	__u8 local[16], peer[16];
	__u16 local_port, peer_port;
	__u8 version, pad[3];
};

/* The low bit of a stream's key. */
#define EGRESS 0
#define INGRESS 1

enum phase {
	GREETING, /* inside the 64 bytes that open a ZMTP stream */
	HEADER,   /* at, or inside, a frame's flags and length */
	PREFIX,   /* inside the first BUF bytes of a meta or command frame */
	BODY,     /* inside a frame that is stepped over or copied in chunks */
	UNSYNCED, /* looking for a message's beginning */
};

enum dialect { UNKNOWN, DMLC, BYTEPS };

/* One direction of one connection. The totals come first: user space reads
 * them. */
struct stream {
	__u64 segments, bytes, messages, data_frames, commands;
	__u64 missed, retransmitted, gap_bytes, lost_batches, sampled;
	__u8 phase, dialect, late, closed, opened, tentative, frame, more;
	struct endpoints ends;
	/* private to the programs */
	__u32 busy, next_seq;
	__u32 batch, tries;
	__u64 remaining, frame_len, lengths[4], message_bytes;
	__u8 kind, want, want_meta, incomplete, header_have, greeted, enveloped;
	__u8 sampled_now; /* 0 no, 1 as the config says, else the stream's shift + 2 */
	__u32 buf_have, value_left;
	__u8 header[16];
	__u8 buf[2 * BUF];
};

struct foreign {
	__u32 segments;
	__u16 reason;
	__u8 late, pad;
};

/* A ring buffer record: this, then records. */
struct batch {
	__u64 stream; /* cookie << 1 | ingress */
	__u64 time;
	__u64 message; /* the stream's message number at the first record */
	__u32 sequence; /* of the stream's batches, lost ones too */
	__u32 size;     /* with this header */
};

struct record {
	__u8 kind, flags, frame;
	__u8 rate;     /* the stream's shift + 1, of a sampled message; 0: as the config says */
	__u16 size;    /* of the data that follow, without the padding to 8 bytes */
	__u16 message; /* since the batch's first */
	__u64 offset, length;
};

enum kind { OPEN = 1, COMMAND, META, KEYS, VALUES, LENS, END, UNSYNC, SYNCED, CLOSE, FOREIGN, ENVELOPE, KEY_RUN };

/* The data of a KEY_RUN: n keys, from first on, each step above the one before. */
struct key_run {
	__u64 first, step, n;
};


enum flag {
	ENDS_FRAME = 1,
	ENDS_MESSAGE = 2,
	SAMPLED = 4,
	INCOMPLETE = 8,
	LATE = 16,
	UNPARSED = 32,
	TRUNCATED = 64,
};
