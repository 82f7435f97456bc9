package values

import (
	"encoding/binary"
	"fmt"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/ef21"
	"github.com/psidecar/psidecar/proxy/codec/element"
)

// copied is the receiving end of [copies]: the same tables, changed only by the parts
// that it reads, in the order of the link. left is limit minus what the tables take,
// counted as the sender counts it; it never falls below zero, since reserve refuses
// first.
//
// The values that a part stands for are those of the copy after the part was applied.
// check covers both, so that ends that have diverged are noticed instead of
// delivering wrong parameters.
type copied struct {
	limit, left int
	tables      []*copyTable
	check       checksum
	decoder     ef21.Decoder
	values      []byte // of keys that are known, gathered
}

// newCopied returns copies of at most limit bytes. limit is the receiver's own bound;
// the sender learns it from the offer and keeps to it.
func newCopied(limit int) copied { return copied{limit: limit, left: limit} }

// read reads a part of some of a message's keys into the beginning of out, and returns how
// many bytes that took and what follows in src. After an error the copies may hold
// anything; the link ends, and with it they do.
func (c *copied) read(src []byte, keys pslite.Keys, out []byte) (n int, rest []byte, err error) {
	start := src
	if len(src) == 0 || src[0] >= copySome<<1 || src[0]&copySome != 0 && src[0]&(copyWhole|copyDense) != 0 {
		return 0, nil, fmt.Errorf("%w: copied values with flags that are none", ErrCorrupt)
	}
	flags, src := src[0], src[1:]
	t, src, err := c.table(flags, src)
	if err != nil {
		return 0, nil, err
	}
	// Before the keys of this part are placed: the sender has counted the room that
	// this frees.
	if flags&copyForget != 0 {
		c.left += t.bytes()
		t.narrow = &keyTable{index: newIndex()}
	}
	first, src, err := uvarint(src)
	if err != nil {
		return 0, nil, err
	}
	if first >= keys.Len() {
		return 0, nil, fmt.Errorf("%w: copied values from key number %d on, where there are %d", ErrCorrupt, first, keys.Len())
	}
	var values []byte
	if flags&copyDense != 0 {
		values, rest, err = c.readDense(t, flags, keys.At(first), src, out)
		if err == nil {
			n = copy(out, values)
		}
	} else {
		n, rest, err = c.readNarrow(t, flags, first, src, keys, out)
		values = t.narrow.values
	}
	if err != nil {
		return 0, nil, err
	}
	// The check covers the part and what it made of the copy, so that a difference
	// between the ends is noticed by the part that reads the piece in question, or by
	// the one that brought it about.
	if len(rest) < 4 || c.check.addPart(start[:len(start)-len(rest)], t, values) != binary.LittleEndian.Uint32(rest) {
		return 0, nil, fmt.Errorf("%w: copied values whose check is another: the ends of the link have come to differ", ErrCorrupt)
	}
	return n, rest[4:], nil
}

// table reads which table a part belongs to, and creates it if the part is the
// table's first. Tables are numbered in the order in which they begin, one for each
// [copyName], and live as long as the link.
func (c *copied) table(flags byte, src []byte) (t *copyTable, rest []byte, err error) {
	number, src, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	if flags&copyBegins == 0 {
		if number >= len(c.tables) {
			return nil, nil, fmt.Errorf("%w: copied values of table %d, which has not begun", ErrCorrupt, number)
		}
		return c.tables[number], src, nil
	}
	if number != len(c.tables) || number >= maxCopyTables || len(src) == 0 || !element.Kind(src[0]).Valid() {
		return nil, nil, fmt.Errorf("%w: table %d of copied values begins, there are %d", ErrCorrupt, number, len(c.tables))
	}
	t = newCopyTable(element.Kind(src[0]))
	c.tables = append(c.tables, t)
	return t, src[1:], nil
}

// reserve counts n bytes, which the sender has counted as well: a sender that keeps to the
// limit never makes it fail.
func (c *copied) reserve(n int) error {
	if n > c.left {
		return fmt.Errorf("%w: more copied values to remember than was agreed", ErrCorrupt)
	}
	c.left -= n
	return nil
}

// readDense reads the part of a dense key and returns its values, which are those of the
// copy.
func (c *copied) readDense(t *copyTable, flags byte, key uint64, src, out []byte) (values, rest []byte, err error) {
	d := t.dense[key]
	if flags&copyWhole == 0 {
		if d == nil || len(d.values) > len(out) {
			return nil, nil, fmt.Errorf("%w: differences of key %d, which there is no copy of, or in a message of %d bytes", ErrCorrupt, key, len(out))
		}
		if rest, err = c.decoder.Decode(t.kind, d.values, src); err != nil {
			return nil, nil, corrupt(err)
		}
		return d.values, rest, nil
	}
	size, src, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	values, rest, err = cut(src, size)
	if err != nil {
		return nil, nil, err
	}
	if size == 0 || size%t.kind.Size() != 0 || size > len(out) {
		return nil, nil, fmt.Errorf("%w: %d bytes of values of key %d where %d are wanted", ErrCorrupt, size, key, len(out))
	}
	// The sender, too, counts the new length before it stops counting the old one.
	if d == nil || len(d.values) != size {
		if err = c.reserve(denseBytes + size); err != nil {
			return nil, nil, err
		}
		if d != nil {
			c.left += denseBytes + len(d.values)
		}
		d = &denseCopy{values: make([]byte, size)}
		t.dense[key] = d
	}
	copy(d.values, values)
	return d.values, rest, nil
}

// readNarrow reads the part of keys of few values: their number and widths, which of
// them are fresh, the fresh values, then the differences of all others as one vector,
// in the order of the keys. It is the mirror of appendNarrow: both ends give the keys
// places in the same order, so that no place is sent.
func (c *copied) readNarrow(t *copyTable, flags byte, first int, src []byte, keys pslite.Keys, out []byte) (n int, rest []byte, err error) {
	p := piece{first: first, kind: t.kind}
	if p.keys, src, err = uvarint(src); err != nil {
		return 0, nil, err
	}
	if p.keys == 0 || p.keys > keys.Len()-first {
		return 0, nil, fmt.Errorf("%w: copied values of %d keys from number %d on, where there are %d", ErrCorrupt, p.keys, first, keys.Len())
	}
	if n, src, err = p.readWidths(src, len(out)/t.kind.Size()); err != nil {
		return 0, nil, err
	}
	n *= t.kind.Size()
	var fresh freshOnes
	switch {
	case flags&copySome != 0:
		var bits []byte
		if bits, src, err = cut(src, (p.keys+7)/8); err != nil {
			return 0, nil, err
		}
		fresh = bits
	// Neither some nor all come whole: none is fresh, so a bit of zero for each.
	case flags&copyWhole == 0:
		fresh = make([]byte, (p.keys+7)/8)
	}
	// Memory is counted before the keys get places, of whose number the input has only made
	// a claim.
	var missing, values int
	var same bool
	t.cells, missing, values, same = t.narrow.index.cellsOf(t.cells[:0], keys, &p)
	if !same {
		return 0, nil, fmt.Errorf("%w: keys with other numbers of values than before", ErrCorrupt)
	}
	if err = c.reserve(missing*cellBytes + values*t.kind.Size()); err != nil {
		return 0, nil, err
	}
	if missing > 0 && !t.placeKeys(&p, keys) {
		return 0, nil, fmt.Errorf("%w: a key that comes twice, with different numbers of values", ErrCorrupt)
	}
	if src, err = t.readFresh(keys[8*first:], fresh, src); err != nil {
		return 0, nil, err
	}
	if rest, err = c.readKnown(t, fresh, src); err != nil {
		return 0, nil, err
	}
	at, size := 0, t.kind.Size()
	for _, number := range t.cells {
		cell := &t.narrow.index.cells[number]
		at += copy(out[at:at+cell.size()*size], t.narrow.values[int(cell.place-1)*size:])
	}
	return n, rest, nil
}

// readWidths reads how many values each key has and returns their sum, which is at
// most most. A first number of 0 announces a list, any other is the width that all
// keys share, plus 1.
func (p *piece) readWidths(src []byte, most int) (sum int, rest []byte, err error) {
	width, src, err := uvarint(src)
	if err != nil {
		return 0, nil, err
	}
	if width > 0 {
		if p.width = width - 1; p.width > most/p.keys || p.width >= DenseValues {
			return 0, nil, fmt.Errorf("%w: %d values of each of %d keys where %d are wanted", ErrCorrupt, p.width, p.keys, most)
		}
		return p.width * p.keys, src, nil
	}
	// Each width takes a byte at least, so src bounds what a claim of many keys can
	// allocate.
	lens := make([]byte, 0, 4*min(p.keys, len(src)))
	for range p.keys {
		if width, src, err = uvarint(src); err != nil {
			return 0, nil, err
		}
		if sum += width; sum > most || width >= DenseValues {
			return 0, nil, fmt.Errorf("%w: copied values of %d keys, where %d are wanted", ErrCorrupt, p.keys, most)
		}
		lens = binary.LittleEndian.AppendUint32(lens, uint32(width))
	}
	// As the message's own lengths, from its first key on.
	p.lens, p.unit = pslite.Lens(append(make([]byte, 4*p.first), lens...)), p.kind.Size()
	return sum, src, nil
}

// readFresh reads the values of fresh keys into their places and marks them as
// pulled, which is what makes them known from the next part on. It checks that all
// others are known: a difference without a copy would be applied to zeros.
func (t *copyTable) readFresh(keys pslite.Keys, fresh freshOnes, src []byte) (rest []byte, err error) {
	size := t.kind.Size()
	for i, number := range t.cells {
		cell := &t.narrow.index.cells[number]
		if !fresh.has(i) {
			if !cell.pulled() {
				return nil, fmt.Errorf("%w: differences of key %d, which there is no copy of", ErrCorrupt, keys.At(i))
			}
			continue
		}
		var values []byte
		if values, src, err = cut(src, cell.size()*size); err != nil {
			return nil, err
		}
		cell.width |= pulledBit
		copy(t.narrow.values[(int(cell.place)-1)*size:], values)
	}
	return src, nil
}

// readKnown applies the differences of the keys that are not fresh. Their values are
// gathered, changed and scattered again, since they are not neighbours in the table.
// A part in which all keys are fresh has no differences.
func (c *copied) readKnown(t *copyTable, fresh freshOnes, src []byte) (rest []byte, err error) {
	size := t.kind.Size()
	c.values = c.values[:0]
	for i, number := range t.cells {
		if !fresh.has(i) {
			cell := &t.narrow.index.cells[number]
			from := int(cell.place - 1)
			c.values = append(c.values, t.narrow.values[from*size:(from+cell.size())*size]...)
		}
	}
	if len(c.values) == 0 {
		return src, nil
	}
	if rest, err = c.decoder.Decode(t.kind, c.values, src); err != nil {
		return nil, corrupt(err)
	}
	t.scatter(fresh, c.values)
	return rest, nil
}
