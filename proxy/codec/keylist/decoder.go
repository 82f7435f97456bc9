package keylist

import "fmt"

// A Decoder reads what the [Encoder] at the other end of a link wrote. It is
// not safe for use by several goroutines.
type Decoder struct {
	table      table
	dictionary dictionary
	list       []byte // the list decoded last, where it is not in the table
	positions  []byte
	others     []byte
}

// NewDecoder returns a Decoder with empty state.
func NewDecoder(limits Limits) *Decoder {
	return &Decoder{table: table{limits: limits}, dictionary: dictionary{limit: limits.DictionaryKeys}}
}

// Decode reads one encoded list from the beginning of src. It returns the body
// of the keys frame, which stays valid until the next call, and what follows
// the list in src. Any error wraps [ErrCorrupt]; the Decoder cannot be used
// after it.
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
		rest, d.list, err = readDelta(src, d.list[:0], d.table.limits.ListBytes)
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
		d.table.keep(d.list)
	}
	return d.list, rest, nil
}

func (d *Decoder) reference(src []byte) (list, rest []byte, err error) {
	age, rest, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	list, err = d.table.byAge(age)
	return list, rest, err
}

func (d *Decoder) raw(src []byte) (list, rest []byte, err error) {
	size, src, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	if size > uint64(len(src)) || size > uint64(d.table.limits.ListBytes) {
		return nil, nil, fmt.Errorf("%w: %d bytes, more than there can be", ErrCorrupt, size)
	}
	return append(d.list[:0], src[:size]...), src[size:], nil
}

// readPositions reads the two lists of the form, leaves the second in d.others
// and merges them.
func (d *Decoder) readPositions(src []byte) (list, rest []byte, err error) {
	most := d.table.limits.ListBytes
	src, d.positions, err = readDelta(src, d.positions[:0], most)
	if err != nil {
		return nil, nil, err
	}
	n := count(d.positions)
	if n > 0 && keyAt(d.positions, n-1) >= uint64(len(d.dictionary.keys)) {
		return nil, nil, fmt.Errorf("%w: position %d of %d", ErrCorrupt, keyAt(d.positions, n-1), len(d.dictionary.keys))
	}
	rest, d.others, err = readDelta(src, d.others[:0], most-len(d.positions))
	if err != nil {
		return nil, nil, err
	}
	return d.mergeLists(d.list), rest, nil
}

// mergeLists merges the keys at d.positions with d.others, in ascending order.
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

// learn does to the dictionary what the flags say.
func (d *Decoder) learn(head form, keys []byte) error {
	if head&resetFlag != 0 {
		d.dictionary.reset()
	}
	if head&resetFlag != 0 {
		keys = d.list
	}
	if head&learnFlag == 0 {
		return nil
	}
	if !d.dictionary.room(count(keys)) {
		return fmt.Errorf("%w: %d keys to learn, more than the limits allow", ErrCorrupt, count(keys))
	}
	d.dictionary.learn(keys)
	return nil
}
