/* The ZMTP frame tracker: follows one stream through segments cut anywhere.
 * step() does one bounded piece of work; the programs call it until the
 * segment is used up. internal/wire/zmtp reads the same language in Go, and a test
 * holds the two against each other. */
#pragma once
#include "meta.h"
#include "runs.h"

enum { GO_ON = 0, STOP = 1 };
enum { F_MORE = 1, F_LONG = 2, F_COMMAND = 4 };
#define GREETING_SIZE 64
#define MAX_SCANS 48 /* windows searched for a beginning in one segment */

/* Makes the next 9 bytes (or what is left) available in r->bytes and returns
 * where; -1 where the segment cannot be read. */
apart int look(struct __sk_buff *skb, struct run *r, __u32 need)
{
	__u32 off, end, n;

	if (!r)
		return -1;
	off = r->off;
	end = r->end;
	n = end - off;
	if (off >= r->window && off + need <= r->window_end)
		return off - r->window;
	if (off >= r->window && off < r->window_end && r->window_end == end)
		return off - r->window;
	if (n > WINDOW)
		n = WINDOW;
	if (load(skb, off, r->bytes, n, WINDOW)) {
		count(R_UNREADABLE, 0);
		return -1;
	}
	r->window = off;
	r->window_end = off + n;
	return 0;
}

/* The bytes are not PS-lite's, or the frame boundary is lost. */
apart int violation(struct run *r, struct stream *s, __u32 foreign, __u32 ours)
{
	if (!r || !s)
		return STOP;
	s->frame = s->header_have = s->enveloped = 0;
	if (s->tentative) { /* the candidate was none; search behind it */
		s->tentative = 0;
		s->phase = UNSYNCED;
		if (r->found)
			r->off = r->candidate + 1;
		r->found = 0;
		return GO_ON;
	}
	if (!s->dialect && !s->late) {
		r->leave = foreign + 1;
		return STOP;
	}
	count_lost(&r->config, r->key, ours, s->frame_len);
	s->phase = UNSYNCED;
	r->missing_from = r->off;
	put_event(r, s, UNSYNC, s->missed);
	return GO_ON;
}

/* Whether the boundary is lost because of a rest. */
always int by_rest(struct run *r, struct stream *s)
{
	return s->rests != r->config.rests;
}

always void synced(struct run *r, struct stream *s, __s64 missed_to)
{
	if (by_rest(r, s))
		s->rested += missed_to - r->missing_from;
	else
		s->missed += missed_to - r->missing_from;
	s->rests = r->config.rests;
	s->tentative = 0;
	if (!s->opened)
		put_open(r, s);
	put_event(r, s, SYNCED, s->missed);
}

/* The candidate was a message's beginning. Where it lies in this segment the
 * tracker goes back to it, and nothing from there on is missed. */
apart int rewind(struct run *r, struct stream *s)
{
	if (!r || !s)
		return STOP;
	r->off = r->candidate;
	r->found = 0;
	synced(r, s, r->off);
	s->phase = HEADER;
	s->frame = s->header_have = s->enveloped = 0;
	return GO_ON;
}

apart int frame_end(struct run *r, struct stream *s)
{
	if (!r || !s)
		return STOP;
	s->phase = HEADER;
	if (s->kind == COMMAND) {
		s->commands++;
		return GO_ON;
	}
	if (!s->tentative)
		s->data_frames++;
	if (s->kind == ENVELOPE) {
		s->enveloped = 1;
		return GO_ON;
	}
	if (s->more) {
		if (s->frame == 3)
			return violation(r, s, R_FOREIGN_MESSAGES, R_BAD_FRAME);
		s->frame++;
		return GO_ON;
	}
	s->enveloped = 0;
	if (s->tentative) {
		s->tentative = 2;
		s->frame = 0;
		/* a segment that is whole messages confirms itself */
		if (r->found && r->off == r->end)
			return rewind(r, s);
		return GO_ON;
	}
	if (s->frame && s->want_meta == 1)
		put_end(r, s, ENDS_MESSAGE | (s->incomplete ? INCOMPLETE : 0));
	s->messages++;
	s->frame = s->sampled_now = 0;
	return GO_ON;
}

always int greeting(struct __sk_buff *skb, struct run *r, struct stream *s, __u32 left)
{
	__u32 have = s->buf_have, n = GREETING_SIZE - have;

	if (n > left)
		n = left;
	if (have >= GREETING_SIZE || load(skb, r->off, s->buf + have, n, GREETING_SIZE)) {
		count(R_UNREADABLE, n);
		return STOP;
	}
	r->off += n;
	s->buf_have = have += n;
	r->leave = R_FOREIGN_PROTOCOL + 1;
	if (s->buf[0] != 0xff || (have > 9 && s->buf[9] != 0x7f))
		return STOP;
	r->leave = R_FOREIGN_ZMTP + 1;
	if ((have > 10 && s->buf[10] < 3) ||
	    (have > 16 && (*(__u32 *)(s->buf + 12) != 0x4c4c554e /* NULL */ || s->buf[16])))
		return STOP;
	r->leave = 0;
	if (have == GREETING_SIZE) {
		s->phase = HEADER;
		s->buf_have = 0;
	}
	return GO_ON;
}

/* A frame's flags and length were read, header bytes in all. */
always int open_frame(struct run *r, struct stream *s, __u32 flags, __u64 len, __u32 header)
{
	s->frame_len = s->remaining = len;
	if (flags & ~(F_MORE | F_LONG | F_COMMAND) || len >> 63)
		return violation(r, s, R_FOREIGN_MESSAGES, R_BAD_FRAME);
	s->buf_have = 0;
	if (flags & F_COMMAND) {
		if (flags & F_MORE || s->frame || !len)
			return violation(r, s, R_FOREIGN_MESSAGES, R_BAD_FRAME);
		s->kind = COMMAND;
		s->phase = PREFIX;
		return GO_ON;
	}
	s->more = flags & F_MORE;
	if (s->frame == 0) {
		if (!s->greeted || !len)
			return violation(r, s, R_FOREIGN_MESSAGES, R_BAD_FRAME);
		s->message_bytes = header + len + (s->enveloped ? s->message_bytes : 0);
		s->lengths[0] = len;
		s->lengths[1] = s->lengths[2] = s->lengths[3] = 0;
		s->incomplete = 0;
		s->kind = META;
		s->phase = PREFIX;
		return GO_ON;
	}
	if (s->tentative && s->frame == 1 && len & 7)
		return violation(r, s, R_FOREIGN_MESSAGES, R_BAD_FRAME);
	s->message_bytes += header + len;
	s->lengths[s->frame & 3] = len;
	s->kind = KEYS + s->frame - 1;
	s->phase = BODY;
	return len ? GO_ON : frame_end(r, s); /* it may be the segment's last */
}

/* A header that straddles segments is gathered byte by byte. */
always int header_byte(struct run *r, struct stream *s, __u8 byte)
{
	__u32 have = s->header_have;

	s->header[have & 15] = byte;
	r->off++;
	s->header_have = ++have;
	if (have < (s->header[0] & F_LONG ? 9 : 2))
		return GO_ON;
	s->header_have = 0;
	if (have == 2)
		return open_frame(r, s, s->header[0], s->header[1], 2);
	return open_frame(r, s, s->header[0], __builtin_bswap64(*(__u64 *)(s->header + 1)), 9);
}

always int header(struct __sk_buff *skb, struct run *r, struct stream *s, __u32 left)
{
	int at = look(skb, r, 9);
	__u32 have, size, flags;
	const __u8 *p;

	if (at < 0 || !left)
		return STOP;
	have = r->window_end - r->off;
	p = r->bytes + (at & (2 * WINDOW - 1));
	flags = p[0];
	size = flags & F_LONG ? 9 : 2;
	if (s->header_have || have < size)
		return header_byte(r, s, flags);
	r->off += size;
	if (size == 2)
		return open_frame(r, s, flags, p[1], 2);
	return open_frame(r, s, flags, __builtin_bswap64(*(const __u64 *)(p + 1)), 9);
}

apart int command(struct run *r, struct stream *s, __u32 at, __u32 n)
{
	const __u8 *p;

	if (!r || !s)
		return STOP;
	p = r->bytes + (at & (2 * WINDOW - 1));
	if (!s->greeted) {
		if (n < 6 || *(const __u32 *)p != 0x41455205 /* 5 R E A */ || *(const __u16 *)(p + 4) != 0x5944)
			return violation(r, s, R_FOREIGN_ZMTP, R_BAD_FRAME);
		s->greeted = 1;
		put_open(r, s);
	}
	if (!s->tentative)
		put_bytes(r, s, COMMAND, s->remaining ? TRUNCATED : ENDS_FRAME, at, n, 0, s->frame_len);
	if (s->remaining)
		count(R_TRUNCATED, s->remaining);
	return GO_ON;
}

apart int meta(struct run *r, struct stream *s, __u32 at, __u32 n)
{
	__u8 flags = 0;
	__u32 len;

	if (!r || !s)
		return STOP;
	len = s->frame_len > 0xffffffff ? 0xffffffff : s->frame_len;
	judge(r, at, n, len);
	if (!r->dialect && (!s->dialect || s->tentative))
		return violation(r, s, R_FOREIGN_MESSAGES, R_BAD_META);
	if (s->tentative == 2) {
		if (r->found)
			return rewind(r, s);
		synced(r, s, (__s64)r->off - (__s64)(s->message_bytes - s->remaining));
	}
	if (s->tentative)
		return GO_ON;
	if (r->dialect) {
		s->dialect = r->dialect;
	} else {
		count(R_BAD_META, s->frame_len);
		flags = UNPARSED;
		r->data = 0;
	}
	choose(r, s);
	if (!s->want_meta)
		return GO_ON;
	if (!s->remaining)
		flags |= s->more ? ENDS_FRAME : ENDS_FRAME | ENDS_MESSAGE;
	put_bytes(r, s, META, flags, at, n, 0, s->frame_len);
	return GO_ON;
}

/* BytePS servers answer on the connection that asked, from a ROUTER socket:
 * there a message begins with one more frame, the asker's identity (ps9). */
always int is_envelope(struct run *r, struct stream *s, __u32 at, __u32 n)
{
	const __u8 *p = r->bytes + (at & (2 * WINDOW - 1));

	return s->more && !s->enveloped && n < 16 && p[0] == 'p' && p[1] == 's';
}

/* The first BUF bytes of a meta or command, or all of it, at r->bytes + at;
 * negative where more segments are needed. */
always int prefix_at(struct __sk_buff *skb, struct run *r, struct stream *s, __u32 left, __u32 want)
{
	__u32 have = s->buf_have, n = want - have;
	int at;

	if (!have && want <= left) {
		at = look(skb, r, want);
		r->off += want;
		s->remaining -= want;
		return at;
	}
	if (n > left)
		n = left;
	if (have >= BUF || load(skb, r->off, s->buf + have, n, BUF)) {
		count(R_UNREADABLE, n);
		return -1;
	}
	r->off += n;
	s->remaining -= n;
	s->buf_have = have + n;
	if (have + n < want)
		return -1;
	copy_words(r->bytes, s->buf, BUF);
	r->window = r->window_end = 0;
	return 0;
}

always int prefix(struct __sk_buff *skb, struct run *r, struct stream *s, __u32 left)
{
	__u32 want = s->frame_len > BUF ? BUF : s->frame_len;
	int at = prefix_at(skb, r, s, left, want);

	if (at < 0)
		return GO_ON;
	s->phase = BODY;
	if (s->kind == COMMAND)
		command(r, s, at, want);
	else if (is_envelope(r, s, at, want))
		s->kind = ENVELOPE;
	else
		meta(r, s, at, want);
	/* a violation, or going back, changed the phase */
	if (s->phase == BODY && !s->remaining && !r->leave)
		return frame_end(r, s);
	return r->leave ? STOP : GO_ON;
}

/* Copies the next n bytes of a frame, at most CHUNK, as one record. */
always __u32 copy_chunk(struct __sk_buff *skb, struct run *r, struct stream *s, __u32 n)
{
	__u64 offset = s->frame_len - s->remaining;
	struct record *e;
	__u32 pos, size;
	__u8 flags = 0;

	if (n > CHUNK)
		n = CHUNK;
	if (s->kind == KEYS)
		n = whole_keys(offset, n);
	if (n == s->remaining)
		flags = s->kind == META && !s->more ? ENDS_FRAME | ENDS_MESSAGE : ENDS_FRAME;
	pos = r->pos + sizeof(*e);
	e = put(r, s, s->kind, flags, n, offset, s->frame_len);
	if (load(skb, r->off, e + 1, n, CHUNK)) {
		count(R_UNREADABLE, n);
		s->incomplete = 1;
		return n;
	}
	size = n;
	if (s->kind == KEYS && is_run(r, pos, n))
		size = to_run(e, n);
	finish_record(r, s, size);
	return n;
}

always int body(struct __sk_buff *skb, struct run *r, struct stream *s, __u32 left)
{
	__u32 n = s->remaining < left ? s->remaining : left;
	int copy = s->kind == META ? s->want_meta :
		   s->kind == COMMAND ? 0 : s->want >> (s->frame - 1 & 3) & 1;

	if (n && copy && !s->tentative)
		n = copy_chunk(skb, r, s, n);
	r->off += n;
	s->remaining -= n;
	return s->remaining ? GO_ON : frame_end(r, s);
}

/* Whether a message may begin at r->bytes + at: a short first frame with a meta
 * that begins as those of applications do. judge() then examines it. */
apart int plausible(struct run *r, __u32 at)
{
	const __u8 *p;

	if (!r)
		return 0;
	p = r->bytes + (at & (2 * WINDOW - 1));
	if (p[0] > F_MORE || p[1] < 12)
		return 0;
	if (p[2] == 0x08)
		return 1;
	return p[1] >= BYTEPS_META && !*(const __u64 *)(p + 10) && p[34] < 2;
}

/* How far before the candidate its header begins: the last two bytes of a
 * length of 8 bytes look like a header too, but without the flag for more. */
always __u32 long_before(const __u8 *bytes, __u32 at)
{
	opaque(at);
	if (at < 7 || at >= WINDOW)
		return 0;
	return (*(const __u64 *)(bytes + at - 7) & ~(__u64)F_MORE) == F_LONG ? 7 : 0;
}

/* Searches the next window of a stream that is not synchronised. Beginnings
 * of segments are likely; in full flow any place is, so after the first
 * windows the search goes on somewhere else in the segment. */
always int scan(struct __sk_buff *skb, struct run *r, struct stream *s, __u32 left)
{
	__u32 n = left > WINDOW ? WINDOW : left;

	r->scans++;
	if (left < 16 || r->scans > MAX_SCANS) {
		r->off = r->end;
		return STOP;
	}
	if (load(skb, r->off, r->bytes, n, WINDOW)) {
		count(R_UNREADABLE, n);
		return STOP;
	}
	r->window = r->window_end = 0;
	r->at = WINDOW;
	for (int i = 0; i < WINDOW - 2; i++) {
		if (plausible(r, i)) {
			r->at = i;
			break;
		}
	}
	forget();
	if (r->at + 12 < n) {
		r->at -= long_before(r->bytes, r->at);
		r->candidate = r->off += r->at;
		r->found = 1;
		s->tentative = 1;
		s->phase = HEADER;
		s->frame = s->header_have = s->enveloped = 0;
		s->greeted = 1;
		return GO_ON;
	}
	r->off += left > WINDOW ? WINDOW - 16 : left;
	if (r->scans == MAX_SCANS / 4 && r->end - r->off > WINDOW)
		r->off += (s->next_seq * 0x9e3779b1u >> 8) % (r->end - r->off);
	return GO_ON;
}

#define phase_function(name)                                                               \
	apart int name##_step(struct __sk_buff *skb, struct run *r, struct stream *s)     \
	{                                                                                  \
		if (!r || !s)                                                              \
			return STOP;                                                       \
		return name(skb, r, s, r->end - r->off);                                   \
	}

phase_function(greeting)
phase_function(header)
phase_function(prefix)
phase_function(body)
phase_function(scan)

always int step(struct __sk_buff *skb, struct run *r, struct stream *s)
{
	if (r->off >= r->end)
		return STOP;
	switch (s->phase) {
	case GREETING:
		return greeting_step(skb, r, s);
	case HEADER:
		return header_step(skb, r, s);
	case PREFIX:
		return prefix_step(skb, r, s);
	case BODY:
		return body_step(skb, r, s);
	case UNSYNCED:
		return scan_step(skb, r, s);
	}
	return STOP;
}
