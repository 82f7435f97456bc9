package keylist

import "fmt"

// A Decoder reads what the [Encoder] at the other end of a link wrote. It is not safe for
// concurrent use. What it keeps for good (table and dictionary) is counted by state; the
// buffers of the list in hand are borrowed.
type Decoder struct {
	memory     Memory // nil: without a bound
	state      Account
	table      table
	dictionary dictionary
	rooms      struct{ list, positions, others Room }
	list       []byte // the list decoded last, unless it was in the table already
	positions  []byte
	others     []byte
}

// NewDecoder returns a Decoder with empty state. It takes its memory from m if that is not
// nil.
func NewDecoder(limits Limits, m Memory) *Decoder {
	return &Decoder{
		memory: m, state: NewAccount(m),
		table: table{limits: limits}, dictionary: dictionary{limit: limits.DictionaryKeys},
	}
}

// Close returns all memory. The Decoder cannot be used afterwards.
func (d *Decoder) Close() { d.state.Close() }

// Decode reads one encoded list from the beginning of src. It returns the body of the keys
// frame, which stays valid until the next call, and what follows the list in src. It may
// block for memory. Any error ends the use of the Decoder, since its state may differ from
// the encoder's then: it wraps [ErrCorrupt], or says that there is no memory.
func (d *Decoder) Decode(src []byte) (list, rest []byte, err error) {
	if len(src) == 0 {
		return nil, nil, fmt.Errorf("%w: it is empty", ErrCorrupt)
	}
	head := form(src[0])
	src = src[1:]
	if !head.valid() {
		return nil, nil, fmt.Errorf("%w: form %#x", ErrCorrupt, byte(head))
	}
	switch head & kindMask {
	case formReference:
		return d.reference(src)
	case formRaw:
		d.list, rest, err = d.raw(src)
	case formDelta:
		rest, d.list, err = d.delta(src, &d.rooms.list, d.table.limits.ListBytes)
		if err == nil {
			err = d.learn(head, d.list)
		}
	case formPositions:
		d.list, rest, err = d.readPositions(src)
		if err == nil {
			err = d.learn(head, d.others)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if head&keepFlag != 0 {
		if !d.table.fits(d.list) {
			return nil, nil, fmt.Errorf("%w: a list of %d bytes to keep, more than the limits allow", ErrCorrupt, len(d.list))
		}
		// The encoder keeps the list if it has the memory; the decoder has no choice and
		// waits for it.
		if err := d.state.Grow(d.table.cost(d.list)); err != nil {
			return nil, nil, err
		}
		before := d.table.bytes
		d.table.keep(d.list)
		d.state.Shrink(before + len(d.list) - d.table.bytes) // of lists that were forgotten
	}
	return d.list, rest, nil
}

// reference returns a list of the table, by its age.
func (d *Decoder) reference(src []byte) (list, rest []byte, err error) {
	age, rest, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	list, err = d.table.byAge(age)
	return list, rest, err
}

// raw reads a list that goes as it is. It is copied, since src is valid for less
// long.
func (d *Decoder) raw(src []byte) (list, rest []byte, err error) {
	size, src, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	if size > uint64(len(src)) || size > uint64(d.table.limits.ListBytes) {
		return nil, nil, fmt.Errorf("%w: %d bytes, more than there can be", ErrCorrupt, size)
	}
	if list, err = d.rooms.list.Reserve(d.memory, int(size)); err != nil {
		return nil, nil, err
	}
	return append(list, src[:size]...), src[size:], nil
}

// readPositions reads the two lists of the form, leaves the second in d.others, and merges
// them.
func (d *Decoder) readPositions(src []byte) (list, rest []byte, err error) {
	most := d.table.limits.ListBytes
	src, d.positions, err = d.delta(src, &d.rooms.positions, most)
	if err != nil {
		return nil, nil, err
	}
	n := count(d.positions)
	if n > 0 && keyAt(d.positions, n-1) >= uint64(len(d.dictionary.keys)) {
		return nil, nil, fmt.Errorf("%w: position %d of %d", ErrCorrupt, keyAt(d.positions, n-1), len(d.dictionary.keys))
	}
	rest, d.others, err = d.delta(src, &d.rooms.others, most-len(d.positions))
	if err != nil {
		return nil, nil, err
	}
	if list, err = d.rooms.list.Reserve(d.memory, len(d.positions)+len(d.others)); err != nil {
		return nil, nil, err
	}
	return d.mergeLists(list), rest, nil
}

// delta reads a delta list of at most most bytes into a room.
func (d *Decoder) delta(src []byte, r *Room, most int) (rest, keys []byte, err error) {
	n, _, err := deltaCount(src, most)
	if err != nil {
		return nil, nil, err
	}
	if keys, err = r.Reserve(d.memory, n*keySize); err != nil {
		return nil, nil, err
	}
	return readDelta(src, keys, most)
}

// mergeLists merges the keys at d.positions with d.others, in ascending order. Both ascend,
// and no key is in both if the encoder is sound; if it is not, the result is wrong but
// within its bounds.
func (d *Decoder) mergeLists(list []byte) []byte {
	known, others := count(d.positions), count(d.others)
	list = extend(list[:0], (known+others)*keySize)
	out, other := 0, 0
	for i := range known {
		key := d.dictionary.keys[keyAt(d.positions, i)]
		for other < others && keyAt(d.others, other) < key {
			putKey(list, out, keyAt(d.others, other))
			out++
			other++
		}
		putKey(list, out, key)
		out++
	}
	copy(list[out*keySize:], d.others[other*keySize:])
	return list
}

// learn changes the dictionary as the encoder's flags say. The flags are explicit
// because the encoder's decisions depend on its memory, too, which the decoder cannot
// know.
func (d *Decoder) learn(head form, keys []byte) error {
	if head&resetFlag != 0 {
		d.state.Shrink(d.dictionary.bytes())
		d.dictionary.reset()
		keys = d.list
	}
	if head&learnFlag == 0 {
		return nil
	}
	if !d.dictionary.room(count(keys)) {
		return fmt.Errorf("%w: %d keys to learn, more than the limits allow", ErrCorrupt, count(keys))
	}
	// learn may merge, which drops duplicate keys: the surplus is returned to the
	// account.
	before := d.dictionary.bytes()
	if err := d.state.Grow(count(keys) * learnedBytes); err != nil {
		return err
	}
	d.dictionary.learn(keys)
	d.state.Shrink(before + count(keys)*learnedBytes - d.dictionary.bytes())
	return nil
}
