/* Runs of keys: a piece of a key frame whose keys are first, first + step,
 * first + 2 step ... is described by these numbers instead of being copied. Jobs
 * with dense parameters send hardly anything else. */
#pragma once
#include "out.h"

#define LEAST_RUN 8 /* keys; also how many are looked at in one go */

/* How much of the next n bytes of a key frame to take together: first the rest
 * of a key that the segment before cut in two, then whole keys, so that the
 * record that holds them can be described as a run. */
always __u32 whole_keys(__u64 offset, __u32 n)
{
	__u32 rest = -offset & 7;

	if (rest)
		return n < rest ? n : rest;
	return n < 8 ? n : n & ~7;
}

/* Returns 1 where the bytes at out + pos, at most CHUNK, are a run of keys. */
apart int is_run(struct run *r, __u32 pos, __u32 bytes)
{
	__u64 want, step, wrong;
	const __u64 *keys;
	__u32 i, groups;

	opaque(pos);
	if (!r || bytes < 8 * LEAST_RUN || pos > OUT_FLUSH + sizeof(struct record))
		return 0;
	keys = (const __u64 *)(r->out + pos);
	want = keys[0];
	step = keys[1] - want;
	groups = bytes / (8 * LEAST_RUN);
	for (i = 0; i < CHUNK / 8 / LEAST_RUN; i++) {
		if (i >= groups)
			break;
		wrong = 0;
#pragma unroll
		for (int k = 0; k < LEAST_RUN; k++) {
			wrong |= keys[k] ^ want;
			want += step;
		}
		if (wrong)
			return 0;
		keys += LEAST_RUN;
	}
	for (i = 0; i < LEAST_RUN - 1; i++) { /* the rest, less than a group */
		if (i >= bytes / 8 % LEAST_RUN)
			break;
		if (keys[i] != want)
			return 0;
		want += step;
	}
	return 1;
}

/* Replaces the keys of a record, bytes long, by the description of their run. */
always __u32 to_run(struct record *e, __u32 bytes)
{
	struct key_run *run = (struct key_run *)(e + 1);

	e->kind = KEY_RUN;
	e->size = sizeof(*run);
	run->step -= run->first; /* the second key stands there */
	run->n = bytes / 8;
	return sizeof(*run);
}
