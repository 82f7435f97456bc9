package bpf

import (
	"context"
	"errors"
	"fmt"
)

// Sizes of struct batch and struct record in wire.h.
const (
	batchSize  = 32
	batchTime  = 8 // offset of batch.time
	recordSize = 24
)

// errMalformed means that the ring buffer has something that this version's programs do not
// write.
var errMalformed = errors.New("malformed: the BPF object and this binary have different versions")

// Read waits for a while for records, passes all that are there to each, and returns nil;
// callers call it in a loop. A record is valid until each returns: its Data lies in the ring
// buffer and is overwritten after that. each must be fast, because the kernel drops batches
// when the ring buffer is full. When ctx ends, Read passes on what is in the ring buffer by
// then and returns ctx.Err().
//
// Malformed batches are skipped, and the first one's error is returned in the end.
func (c *Capture) Read(ctx context.Context, each func(*Record)) error {
	// Streams that are gone: a cookie is never reused, so their entries would stay for ever.
	c.sweepMu.Lock()
	for _, id := range c.gone {
		delete(c.batches, id)
	}
	c.gone = c.gone[:0]
	c.sweepMu.Unlock()
	var malformed error
	hand := func(batch []byte) {
		if err := c.unpack(batch, each); err != nil && malformed == nil {
			malformed = err
		}
	}
	for waited := false; ; {
		// Read before draining, so that everything written before ctx ended is returned.
		ended := ctx.Err()
		found := c.ring.drain(hand)
		switch {
		case ended != nil:
			return ended
		case found:
			return malformed
		}
		if waited {
			return nil
		}
		waited = true
		if err := c.ring.wait(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// unpack passes the records of one batch to each. If batches of the same stream are missing
// before it, which its sequence number shows, a KindLost record comes first.
//
// The layout is that of struct batch and struct record in wire.h; data is padded to 8 bytes.
// Sizes are checked against the batch, although the kernel is trusted, to detect an object of
// another version.
func (c *Capture) unpack(b []byte, each func(*Record)) error {
	if len(b) < batchSize {
		return fmt.Errorf("batch of %d bytes in the ring buffer: %w", len(b), errMalformed)
	}
	size := native.Uint32(b[28:])
	if size < batchSize || uint64(size) > uint64(len(b)) {
		return fmt.Errorf("batch of %d bytes in %d in the ring buffer: %w", size, len(b), errMalformed)
	}
	r := Record{Stream: StreamID(native.Uint64(b)), Time: native.Uint64(b[batchTime:])}
	first := native.Uint64(b[16:])
	sequence := native.Uint32(b[24:])
	if lost := sequence - c.batches[r.Stream]; lost != 0 {
		r.Kind, r.Length, r.Message = KindLost, uint64(lost), first
		each(&r)
	}
	c.batches[r.Stream] = sequence + 1
	b = b[batchSize:size]
	for len(b) >= recordSize {
		size := int(native.Uint16(b[4:]))
		padded := recordSize + (size+7)&^7
		if padded > len(b) {
			return fmt.Errorf("record of %d bytes in the ring buffer: %w", size, errMalformed)
		}
		r.Kind, r.Flags, r.Frame, r.rate = Kind(b[0]), Flags(b[1]), b[2], b[3]
		r.Message = first + uint64(native.Uint16(b[6:]))
		r.Offset, r.Length = native.Uint64(b[8:]), native.Uint64(b[16:])
		r.Data = b[recordSize : recordSize+size]
		each(&r)
		// The last record of a stream. If the stream is looked at again, its numbers start
		// over.
		if r.Kind == KindForeign {
			delete(c.batches, r.Stream)
		}
		b = b[padded:]
	}
	return nil
}
