package ef21

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/huff0"
)

// Most differences are small beside the largest of their bucket, so few of quantize's codes
// are frequent. A Huffman code of their bytes takes a fifth less if the differences are
// normally distributed, and less still if few are large. A block has the codes of one or
// more whole chunks.

// blockSize is the number of bytes from which on a block is full.
const blockSize = 64 << 10

// mostBlock bounds the bytes that a block unpacks to: a block that is almost full, and a
// chunk of the most numbers as they are.
const mostBlock = blockSize + 5*mostChunk

// packer writes blocks. Its zero value is ready.
type packer struct {
	plain   []byte // of the block that is being filled
	scratch huff0.Scratch
}

// flush appends the block and empties it. A block that Huffman coding does not shorten goes
// as it is, which a packed size of 0 says.
func (p *packer) flush(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(p.plain)))
	p.scratch.Reuse = huff0.ReusePolicyNone
	packed, _, err := huff0.Compress4X(p.plain, &p.scratch)
	if err != nil { // it becomes no smaller, or is too long
		dst = append(binary.AppendUvarint(dst, 0), p.plain...)
	} else {
		dst = append(binary.AppendUvarint(dst, uint64(len(packed))), packed...)
	}
	p.plain = p.plain[:0]
	return dst
}

// unpacker reads blocks. Its zero value is ready.
type unpacker struct {
	plain   []byte
	scratch huff0.Scratch
}

// nextBlock returns the bytes of a block, valid until the next call, and what follows it.
// It allocates no more than mostBlock, whatever src claims.
func (u *unpacker) nextBlock(src []byte) (plain, rest []byte, err error) {
	n, used := binary.Uvarint(src)
	if used <= 0 || n == 0 || n > mostBlock {
		return nil, nil, fmt.Errorf("%w: a block of %d bytes", ErrCorrupt, n)
	}
	src = src[used:]
	size, used := binary.Uvarint(src)
	if used <= 0 {
		return nil, nil, fmt.Errorf("%w: they end within a block's beginning", ErrCorrupt)
	}
	src = src[used:]
	if size == 0 {
		if n > uint64(len(src)) {
			return nil, nil, fmt.Errorf("%w: they end within a block", ErrCorrupt)
		}
		return src[:n], src[n:], nil
	}
	if size > uint64(len(src)) || n > huff0.BlockSizeMax {
		return nil, nil, fmt.Errorf("%w: %d bytes for a block of %d", ErrCorrupt, size, n)
	}
	table, codes, err := huff0.ReadTable(src[:size], &u.scratch)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: a block's table: %w", ErrCorrupt, err)
	}
	if cap(u.plain) < int(n) {
		u.plain = make([]byte, n)
	}
	if plain, err = table.Decoder().Decompress4X(u.plain[:0:n], codes); err != nil {
		return nil, nil, fmt.Errorf("%w: a block: %w", ErrCorrupt, err)
	}
	if len(plain) != int(n) {
		return nil, nil, fmt.Errorf("%w: a block has %d bytes instead of %d", ErrCorrupt, len(plain), n)
	}
	return plain, src[size:], nil
}
