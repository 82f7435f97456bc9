package blocks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/psidecar/psidecar/planner/partition/stream"
)

// Blocks, lists and replies travel between workers as bytes. Numbers are
// varints, ascending lists are differences, and a set of k machines takes
// ceil(k/8) bytes. The form is private to one run of one program.

// ErrDamaged is wrapped by errors of decoding.
var ErrDamaged = errors.New("damaged bytes between workers")

// A decoder takes numbers off the front of bytes. After a failure all are 0.
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

// count returns a number of things that take so many bytes each at least.
func (d *decoder) count(each int) int {
	n := d.uvarint()
	if n > uint64(len(d.rest)/max(1, each)) {
		d.failed, d.rest = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) int32() int {
	n := d.uvarint()
	if n > math.MaxInt32 {
		d.failed = true
		return 0
	}
	return int(n)
}

// ascending returns a list as appendAscending writes it.
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

func (d *decoder) sets(n, k int) []uint64 {
	bytes, words := (k+7)/8, stream.SetWords(k)
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

// end returns an error unless all was well and nothing is left.
func (d *decoder) end(what string) error {
	if d.failed || len(d.rest) > 0 {
		return fmt.Errorf("%w: %s", ErrDamaged, what)
	}
	return nil
}

func appendAscending(out []byte, ids []uint64) []byte {
	var last uint64
	for _, id := range ids {
		out = binary.AppendUvarint(out, id-last)
		last = id
	}
	return out
}

func appendSets(out []byte, sets []uint64, k int) []byte {
	bytes, words := (k+7)/8, stream.SetWords(k)
	for i := 0; i < len(sets); i += words {
		for b := range bytes {
			out = append(out, byte(sets[i+b/8]>>(b%8*8)))
		}
	}
	return out
}

// Append appends the block.
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

// Append appends the list, of sets of k machines.
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
	Rank   []int64  // the bucket's features that each machine uses
	Others []uint64 // see [Bucket.Others]
}

// Append appends the reply; its Rank is of all machines.
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

// A Row is a sample of a block on its way there: its number in the block and its
// distinct features, ascending.
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

// DecodeRows decodes a list of rows that follow each other.
func DecodeRows(in []byte, rows []Row) ([]Row, error) {
	d := &decoder{rest: in}
	for len(d.rest) > 0 && !d.failed {
		r := Row{Sample: d.uvarint()}
		r.IDs = d.ascending(d.count(1))
		rows = append(rows, r)
	}
	return rows, d.end("rows")
}

// Collect makes a block of its rows, which come in any order.
func Collect(number int, size int64, rows []Row) (*Block, error) {
	slices.SortFunc(rows, func(a, b Row) int {
		switch {
		case a.Sample < b.Sample:
			return -1
		case a.Sample > b.Sample:
			return 1
		}
		return 0
	})
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

// ErrChanged is wrapped by errors for data that are not what they were.
var ErrChanged = errors.New("the data changed between two readings of it: run again")
