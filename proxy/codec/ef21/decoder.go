package ef21

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/quantize"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// Decoder is memory that vectors can share if they take turns. Its zero value is
// ready. It keeps no state between vectors: the copy, which is the state, is the
// caller's. It is not safe for concurrent use.
type Decoder struct {
	vector sparse.Vector
	room   room
	at     []uint32
	half   []byte
	back   []byte
	blocks unpacker
}

// Decode applies to the copy what [Encoder.Append] wrote, and returns what follows it in
// src. Every sum is rounded exactly as the encoder rounds it, or the two copies would drift
// apart. After an error the copy may hold anything, and its owner has to give it up.
func (d *Decoder) Decode(kind element.Kind, copied, src []byte) (rest []byte, err error) {
	if len(src) == 0 {
		return nil, fmt.Errorf("%w: there are none", ErrCorrupt)
	}
	f, src := form(src[0]), src[1:]
	switch f {
	case formNumbers:
		return d.numbers(kind, copied, src)
	case formHalves, formSome:
		return d.some(f, kind, copied, src)
	case formAll, formPacked:
		return d.all(f, kind, copied, src)
	}
	return nil, fmt.Errorf("%w: unknown form %d", ErrCorrupt, f)
}

// numbers replaces numbers of the copy by those of the sender's vector. Nothing is
// added, so nothing is rounded, and the copy is exact at these positions.
func (d *Decoder) numbers(kind element.Kind, copied, src []byte) (rest []byte, err error) {
	n := len(copied) / kind.Size()
	if rest, err = d.vector.Decode(src, n); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if d.vector.Kind != kind || d.vector.N != n {
		return nil, fmt.Errorf("%w: a vector of %d %v, the copy has %d %v", ErrCorrupt, d.vector.N, d.vector.Kind, n, kind)
	}
	d.vector.Merge(copied)
	return rest, nil
}

// some adds the differences of some numbers to the copy. They come as bfloat16 or
// rounded by quantize, as float32 numbers whatever the copy's kind is.
func (d *Decoder) some(f form, kind element.Kind, copied, src []byte) (rest []byte, err error) {
	n := len(copied) / kind.Size()
	count, src, err := d.vector.DecodeHeader(src, n)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if d.vector.Kind != element.Float32 || d.vector.N != n {
		return nil, fmt.Errorf("%w: differences of %d %v for a copy of %d", ErrCorrupt, d.vector.N, d.vector.Kind, n)
	}
	if f == formSome {
		if d.back, rest, err = quantize.Decode(d.back[:0], element.Float32, count, src); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	} else {
		if d.half, rest, err = sparse.DecodeValues(d.half[:0], element.BFloat16, count, src); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		d.back = slices.Grow(d.back[:0], 4*count)[:4*count]
		vector.FromBFloat16(d.back, d.half)
	}
	d.at = d.at[:0]
	for i, w := range d.vector.Mask {
		for ; w != 0; w &= w - 1 {
			d.at = append(d.at, uint32(64*i+bits.TrailingZeros64(w)))
		}
	}
	addAt(kind, copied, d.at, d.back)
	return rest, nil
}

// mostChunk is how many numbers a chunk may have: as many as the largest bucket.
const mostChunk = 1 << 16

// all adds the differences of all numbers, chunk by chunk. In form packed, each block has
// the codes of one or more whole chunks, so that a block is unpacked only when the one
// before is used up.
func (d *Decoder) all(f form, kind element.Kind, copied, src []byte) (rest []byte, err error) {
	each, used := binary.Uvarint(src)
	if used <= 0 || each < 1 || each > mostChunk {
		return nil, fmt.Errorf("%w: chunks of %d", ErrCorrupt, each)
	}
	src = src[used:]
	codes := src
	if f == formPacked {
		codes = nil
	}
	for size := int(each) * kind.Size(); len(copied) > 0; {
		if f == formPacked && len(codes) == 0 {
			if codes, src, err = d.blocks.nextBlock(src); err != nil {
				return nil, err
			}
		}
		part := copied[:min(size, len(copied))]
		copied = copied[len(part):]
		if d.back, codes, err = quantize.Decode(d.back[:0], element.Float32, len(part)/kind.Size(), codes); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		d.room.addNumbers(kind, part, d.back)
	}
	if f == formAll {
		return codes, nil
	}
	// A block ends with a chunk, and the last one with the vector.
	if len(codes) > 0 {
		return nil, fmt.Errorf("%w: %d bytes of a block are too many", ErrCorrupt, len(codes))
	}
	return src, nil
}
