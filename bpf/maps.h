/* The maps and the per-run buffer of the capture programs. */
#pragma once
#include "wire.h"
#include "reasons.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} settings SEC(".maps");

/* A plain hash, not an LRU one: a stream that does not fit is counted, and
 * none loses its totals unseen. User space removes the closed ones. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct stream);
} streams SEC(".maps");

/* Streams that are sampled in a way of their own. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct rate);
} rates SEC(".maps");

/* Streams that are not PS-lite's; forgetting one costs a second look. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct foreign);
} foreigners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 25);
} events SEC(".maps");

struct count {
	__u64 events, bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

/* What one run works with. A program in process context can be interrupted by
 * another on its CPU, or preempted, so each claims a buffer for itself. Not a
 * per-CPU map: those hold 32 KiB at most. */
#define WINDOW 256 /* bytes of the segment that are at hand without a helper call */
struct run {
	__u64 key;
	__u32 busy;
	__u32 off, end;           /* of the segment: where the tracker is, where it ends */
	__u32 window, window_end; /* the part of it that is in bytes[] */
	__u32 pos;                /* write position in out[] */
	__u32 missing_from;       /* where in the segment bytes began to be missed */
	__u32 candidate;          /* where a message may begin, while not synchronised */
	__u32 scans, found;
	__u32 visits;
	__u32 urgent; /* the batch is to wake the reader */
	__u32 leave; /* a reason to forget the stream, plus 1 */
	__u64 start_message;
	struct config config;
	/* what judge() read from a meta */
	__u32 at;
	__u32 seen;
	__u32 timestamp;
	__u8 request, push, data, dialect, closing;
	__u8 bytes[4 * WINDOW]; /* read at any offset below 2 * WINDOW */
	struct stream fresh; /* what a new stream begins with */
	__u8 out[OUT_SIZE];
};

#define SLOTS 4        /* buffers a CPU */
#define SLOT_TRIES 16  /* of its own and its neighbours', looked at for a free one */
volatile const __u32 slots = SLOT_TRIES; /* in all; set by the loader */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOT_TRIES);
	__type(key, __u32);
	__type(value, struct run);
} runs SEC(".maps");

always void count(__u32 reason, __u64 bytes)
{
	struct count *c = bpf_map_lookup_elem(&counts, &reason);

	if (c) {
		__sync_fetch_and_add(&c->events, 1);
		__sync_fetch_and_add(&c->bytes, bytes);
	}
}

/* Whether a stream is followed for the times of answers alone. */
always int timing(const struct config *c, __u64 key)
{
	return c->ingress_metas && key & INGRESS;
}

/* Counts what was lost of a stream, apart where only times were. */
always void count_lost(const struct config *c, __u64 key, __u32 reason, __u64 bytes)
{
	count(timing(c, key) ? R_UNTIMED : reason, bytes);
}

always struct run *claim(void)
{
	__u32 base = bpf_get_smp_processor_id() * SLOTS;

	for (__u32 i = 0; i < SLOT_TRIES; i++) {
		__u32 slot = (base + i) % (slots ? slots : 1);
		struct run *r = bpf_map_lookup_elem(&runs, &slot);

		if (r && __sync_val_compare_and_swap(&r->busy, 0, 1) == 0)
			return r;
	}
	return 0;
}
