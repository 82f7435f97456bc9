package blocks

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Blocks, lists and replies travel between workers as bytes. Numbers are unsigned varints,
// ascending lists are differences, and a set of k machines takes ceil(k/8) bytes. The format is
// private to one run of one program, so it has no version. Decoders are strict all the same: they
// check lengths and order, so that damaged bytes give an error instead of a wrong partition.

// ErrDamaged is wrapped by errors of decoding.
var ErrDamaged = errors.New("damaged bytes between workers")

// A decoder takes numbers from the front of a byte slice. After a failure all numbers are 0, so a
// caller need only check at the end.
type decoder struct {
	rest   []byte
	failed bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.failed, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// count returns a number of elements that take at least each bytes apiece. It fails if the rest is
// too short for them, which bounds the caller's allocation by the input.
func (d *decoder) count(each int) int {
	n := d.uvarint()
	if n > uint64(len(d.rest)/max(1, each)) {
		d.failed, d.rest = true, nil
		return 0
	}
	return int(n)
}

// int32 returns a number that fits in 31 bits.
func (d *decoder) int32() int {
	n := d.uvarint()
	if n > math.MaxInt32 {
		d.failed = true
		return 0
	}
	return int(n)
}

// ascending returns n numbers that appendAscending has written. It fails if they do not strictly
// ascend.
func (d *decoder) ascending(n int) []uint64 {
	ids := make([]uint64, n)
	var last uint64
	for i := range ids {
		step := d.uvarint()
		if i > 0 && step == 0 || last+step < last {
			d.failed = true
			return nil
		}
		last += step
		ids[i] = last
	}
	return ids
}

// sets returns n sets of k machines, which must be all of the rest. It fails if a set has a machine
// beyond k.
func (d *decoder) sets(n, k int) []uint64 {
	bytes, words := (k+7)/8, setWords(k)
	if len(d.rest) != n*bytes {
		d.failed = true
		return nil
	}
	sets := make([]uint64, n*words)
	for i := range n {
		for b := range bytes {
			sets[i*words+b/8] |= uint64(d.rest[i*bytes+b]) << (b % 8 * 8)
		}
		if k%64 != 0 && sets[(i+1)*words-1]>>(k%64) != 0 {
			d.failed = true
			return nil
		}
	}
	d.rest = nil
	return sets
}

// end returns an error unless decoding has succeeded and used all bytes.
func (d *decoder) end(what string) error {
	if d.failed || len(d.rest) > 0 {
		return fmt.Errorf("%w: %s", ErrDamaged, what)
	}
	return nil
}

// appendAscending appends ids as differences, the first one to 0.
func appendAscending(out []byte, ids []uint64) []byte {
	var last uint64
	for _, id := range ids {
		out = binary.AppendUvarint(out, id-last)
		last = id
	}
	return out
}

// appendSets appends sets of k machines without the unused bytes of their last words.
func appendSets(out []byte, sets []uint64, k int) []byte {
	bytes, words := (k+7)/8, setWords(k)
	for i := 0; i < len(sets); i += words {
		for b := range bytes {
			out = append(out, byte(sets[i+b/8]>>(b%8*8)))
		}
	}
	return out
}

// Append appends the encoded block: number, ids, then for each sample its machine plus one, and its
// features as indices.
func (b *Block) Append(out []byte) []byte {
	out = binary.AppendUvarint(out, uint64(b.Number))
	out = binary.AppendUvarint(out, uint64(len(b.IDs)))
	out = appendAscending(out, b.IDs)
	out = binary.AppendUvarint(out, uint64(len(b.On)))
	for s, machine := range b.On {
		slots := b.Slot[b.Start[s]:b.Start[s+1]]
		out = binary.AppendUvarint(out, uint64(machine+1)) // None is 0
		out = binary.AppendUvarint(out, uint64(len(slots)))
		for _, slot := range slots {
			out = binary.AppendUvarint(out, uint64(slot))
		}
	}
	return out
}

// DecodeBlock decodes a block.
func DecodeBlock(in []byte) (*Block, error) {
	d := &decoder{rest: in}
	b := &Block{Number: d.int32()}
	b.IDs = d.ascending(d.count(1))
	n := d.count(2)
	b.Start, b.On = make([]uint32, 1, n+1), make([]uint16, n)
	b.Slot = make([]uint32, 0, len(d.rest)/2)
	for s := range b.On {
		machine := d.uvarint()
		if machine > None {
			d.failed = true
		}
		b.On[s] = uint16(machine - 1)
		for range d.count(1) {
			slot := d.uvarint()
			if slot >= uint64(len(b.IDs)) {
				d.failed = true
			}
			b.Slot = append(b.Slot, uint32(slot))
		}
		b.Start = append(b.Start, uint32(len(b.Slot)))
	}
	return b, d.end("a block")
}

// Append appends the encoded list, whose sets are of k machines.
func (l *List) Append(out []byte, k int) []byte {
	out = binary.AppendUvarint(out, uint64(l.Block))
	out = binary.AppendUvarint(out, uint64(len(l.IDs)))
	out = appendAscending(out, l.IDs)
	return appendSets(out, l.Users, k)
}

// DecodeList decodes a list of sets of k machines.
func DecodeList(in []byte, k int) (List, error) {
	d := &decoder{rest: in}
	l := List{Block: d.int32()}
	l.IDs = d.ascending(d.count(1))
	l.Users = d.sets(len(l.IDs), k)
	return l, d.end("a list of features")
}

// A Reply is what a bucket says to a block.
type Reply struct {
	Bucket int
	// The number of the bucket's features that each machine uses.
	Rank   []int64
	Others []uint64 // see [Bucket.Others]
}

// Append appends the encoded reply. Rank must have an element for each machine.
func (r *Reply) Append(out []byte) []byte {
	out = binary.AppendUvarint(out, uint64(r.Bucket))
	for _, n := range r.Rank {
		out = binary.AppendUvarint(out, uint64(n))
	}
	return appendSets(out, r.Others, len(r.Rank))
}

// DecodeReply decodes a reply about k machines.
func DecodeReply(in []byte, k int) (Reply, error) {
	d := &decoder{rest: in}
	r := Reply{Bucket: d.int32(), Rank: make([]int64, k)}
	for i := range r.Rank {
		r.Rank[i] = int64(d.uvarint() & math.MaxInt64)
	}
	bytes := (k + 7) / 8
	if len(d.rest)%bytes != 0 {
		d.failed = true
	} else {
		r.Others = d.sets(len(d.rest)/bytes, k)
	}
	return r, d.end("a bucket's reply")
}

// A Row is a sample on its way to its block: its number in the block, and its distinct features in
// ascending order.
type Row struct {
	Sample uint64
	IDs    []uint64
}

// Append appends the row.
func (r *Row) Append(out []byte) []byte {
	out = binary.AppendUvarint(out, r.Sample)
	out = binary.AppendUvarint(out, uint64(len(r.IDs)))
	return appendAscending(out, r.IDs)
}

// DecodeRows decodes rows that follow each other and appends them to rows.
func DecodeRows(in []byte, rows []Row) ([]Row, error) {
	d := &decoder{rest: in}
	for len(d.rest) > 0 && !d.failed {
		r := Row{Sample: d.uvarint()}
		r.IDs = d.ascending(d.count(1))
		rows = append(rows, r)
	}
	return rows, d.end("rows")
}

// Collect makes a block of its rows, which come in any order and which it sorts. It fails with
// ErrChanged unless there is exactly one row for each of the size samples.
func Collect(number int, size int64, rows []Row) (*Block, error) {
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Sample, b.Sample) })
	ids := make([][]uint64, len(rows))
	for i := range rows {
		if rows[i].Sample != uint64(i) {
			break
		}
		ids[i] = rows[i].IDs
	}
	if int64(len(rows)) != size || len(rows) > 0 && rows[len(rows)-1].Sample != uint64(len(rows)-1) {
		return nil, fmt.Errorf("block %d has %d samples, want %d: %w", number, len(rows), size, ErrChanged)
	}
	return NewBlock(number, ids), nil
}

// ErrChanged is wrapped by errors for data that has changed between two readings.
var ErrChanged = errors.New("the data changed between two readings of it: run again")
