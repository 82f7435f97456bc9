/* Writing records into the run's batch, and the batch into the ring buffer. */
#pragma once
#include "maps.h"

/* Keeps the compiler from dropping a bounds check that the verifier needs. */
#define opaque(x) asm volatile("" : "+r"(x))

/* Makes what follows read memory anew. The verifier knows nothing of what is
 * in a map's value, so all paths that meet here look the same to it, and it
 * goes on with one. */
#define forget() asm volatile("" ::: "memory")

/* Reads n bytes of the packet, 1 to max. The detour over n - 1 is for verifiers
 * before Linux 6.8, which learn nothing from a comparison with zero. */
always int load(struct __sk_buff *skb, __u32 off, void *to, __u64 n, const __u64 max)
{
	n--;
	opaque(n);
	if (n >= max)
		return -1;
	return bpf_skb_load_bytes(skb, off, to, n + 1);
}

/* Hands the batch over. The reader is woken when another wake_bytes have
 * gathered, and for a new stream; otherwise it looks by itself now and then. */
apart int flush(struct run *r, struct stream *s)
{
	__u64 size, before, flags = BPF_RB_NO_WAKEUP;
	struct batch *b;
	__u32 wake;

	if (!r || !s)
		return 0;
	b = (struct batch *)r->out;
	size = r->pos;
	wake = r->config.wake_bytes;
	if (size <= sizeof(*b))
		return 0;
	if (size > OUT_SIZE)
		size = OUT_SIZE;
	b->stream = r->key;
	b->time = bpf_ktime_get_ns();
	b->message = r->start_message;
	b->sequence = s->batch++;
	b->size = size;
	before = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);
	if (r->urgent || (wake && before / wake != (before + size) / wake))
		flags = BPF_RB_FORCE_WAKEUP;
	if (bpf_ringbuf_output(&events, r->out, size, flags)) {
		s->lost_batches++;
		count(R_RING_FULL, size);
	} else {
		count(R_COPIED, size);
	}
	r->pos = sizeof(*b);
	r->urgent = 0;
	r->start_message = s->messages;
	return 0;
}

/* Where the next record goes; there is room for CHUNK bytes of data. */
always struct record *next_record(struct run *r)
{
	__u32 pos = r->pos;

	opaque(pos);
	if (pos > OUT_FLUSH)
		pos = 0; /* never: flush() is called first */
	return (struct record *)(r->out + pos);
}

always void finish_record(struct run *r, struct stream *s, __u32 size)
{
	r->pos += sizeof(struct record) + ((size + 7) & ~7);
	if (r->pos > OUT_FLUSH)
		flush(r, s);
}

always struct record *put(struct run *r, struct stream *s, __u8 kind, __u8 flags, __u32 size, __u64 offset,
			  __u64 length)
{
	struct record *e = next_record(r);

	if (s->late)
		flags |= LATE;
	if (s->sampled_now)
		flags |= SAMPLED;
	e->kind = kind;
	e->flags = flags;
	e->frame = s->frame;
	e->rate = s->sampled_now ? s->sampled_now - 1 : 0;
	e->size = size;
	e->message = s->messages - r->start_message;
	e->offset = offset;
	e->length = length;
	return e;
}

always void copy_words(__u8 *to, const __u8 *from, int bytes)
{
#pragma unroll
	for (int i = 0; i < bytes; i += 8)
		*(__u64 *)(to + i) = *(const __u64 *)(from + i);
}

/* A record of up to BUF bytes that are at r->bytes + at. */
always void put_bytes(struct run *r, struct stream *s, __u8 kind, __u8 flags, __u32 at, __u32 size, __u64 offset,
		      __u64 length)
{
	struct record *e = put(r, s, kind, flags, size, offset, length);
	__u8 *to = (__u8 *)(e + 1);
	const __u8 *from = r->bytes + (at & (2 * WINDOW - 1));

	copy_words(to, from, 64);
	if (size > 64)
		copy_words(to + 64, from + 64, BUF - 64);
	finish_record(r, s, size);
}

always void put_open(struct run *r, struct stream *s)
{
	struct record *e = put(r, s, OPEN, 0, sizeof(s->ends), 0, 0);

	copy_words((__u8 *)(e + 1), (__u8 *)&s->ends, sizeof(s->ends));
	s->opened = 1;
	r->urgent = 1; /* whose it is can only be found out while its process lives */
	finish_record(r, s, sizeof(s->ends));
}

always void put_end(struct run *r, struct stream *s, __u8 flags)
{
	struct record *e = put(r, s, END, flags, sizeof(s->lengths), s->message_bytes, 0);

	copy_words((__u8 *)(e + 1), (__u8 *)s->lengths, sizeof(s->lengths));
	finish_record(r, s, sizeof(s->lengths));
}

always void put_event(struct run *r, struct stream *s, __u8 kind, __u64 length)
{
	put(r, s, kind, 0, 0, s->rested, length);
	finish_record(r, s, 0);
}
