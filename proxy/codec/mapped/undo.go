package mapped

import (
	"cmp"
	"hash/crc32"
	"slices"
	"unsafe"
)

// An undo record says what some bytes were before the transaction changed them.
//
//	record  word of the transaction, CRC u32 of what follows but for the bytes,
//	        size of a number u32, place of the extent u64, how many u64, from which
//	        byte of the extent u64; positions u32 each, none for numbers in a row;
//	        the bytes; both padded to 8
//
// The word is stored once everything else is in place, and before anything changes. Behind
// the last record there is no word of this transaction, so that the reader stops there.
const undoHead = 40

// leastUndo is the least room for undo records, in bytes.
const leastUndo = 4 << 10

// Save logs n bytes of an extent, from byte from on, before they change. On an error they
// must not be changed, or a kill before the next commit leaves them half changed.
func (f *File) Save(e *Extent, from, n int) error {
	if n == 0 {
		return nil
	}
	b, err := f.undoRoom(undoHead + pad(n))
	if err != nil {
		return err
	}
	copy(b[undoHead:], e.whole[headSize+from:headSize+from+n])
	f.sealUndo(b, e, 0, n, from, 0)
	return nil
}

// SaveAt logs the numbers of size bytes (4 or 8) at these positions of an extent, before
// they change. It costs about as much as gathering them.
func (f *File) SaveAt(e *Extent, at []uint32, size int) error {
	if len(at) == 0 {
		return nil
	}
	positions := pad(4 * len(at))
	b, err := f.undoRoom(undoHead + positions + pad(size*len(at)))
	if err != nil {
		return err
	}
	copy(b[undoHead:], unsafe.Slice((*byte)(unsafe.Pointer(&at[0])), 4*len(at)))
	gather(b[undoHead+positions:], e.Bytes(), at, size)
	f.sealUndo(b, e, size, len(at), 0, 4*len(at))
	return nil
}

// gather copies the numbers at the positions. An undo record is 8 bytes aligned, and
// so is an extent.
func gather(dst, src []byte, at []uint32, size int) {
	if size == 4 {
		from, to := asWords[uint32](src), asWords[uint32](dst)
		for i, p := range at {
			to[i] = from[p]
		}
		return
	}
	from, to := asWords[uint64](src), asWords[uint64](dst)
	for i, p := range at {
		to[i] = from[p]
	}
}

func asWords[W uint32 | uint64](b []byte) []W {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*W)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(W(0))))
}

func pad(n int) int { return (n + 7) &^ 7 }

// undoRoom returns room for a record of n bytes: behind the last one if it fits there,
// otherwise in a new extent, twice as large as the last.
func (f *File) undoRoom(n int) ([]byte, error) {
	if len(f.undo) > 0 {
		if room := f.undo[len(f.undo)-1].Room(); f.noted+n <= len(room) {
			return room[f.noted : f.noted+n], nil
		}
	}
	size := max(n, leastUndo)
	if k := len(f.undo); k > 0 {
		size = max(size, 2*len(f.undo[k-1].Room()))
	}
	f.undos++
	e, err := f.alloc(kindUndo, Tag{D: f.undos}, size)
	if err != nil && size > n { // just what is needed, then
		e, err = f.alloc(kindUndo, Tag{D: f.undos}, n)
	}
	if err != nil {
		return nil, err
	}
	f.undo, f.noted = append(f.undo, e), 0
	return e.Room()[:n], nil
}

// sealUndo completes a record whose positions and bytes are in b, and makes it count. The
// word behind it is cleared first: it may be that of an older record.
func (f *File) sealUndo(b []byte, e *Extent, size, n, from, positions int) {
	putUint32(b[12:], uint32(size))
	putUint64(b[16:], uint64(e.at))
	putUint64(b[24:], uint64(n))
	putUint64(b[32:], uint64(from))
	putUint32(b[8:], undoSum(b, positions))
	f.noted += len(b)
	if room := f.undo[len(f.undo)-1].Room(); f.noted+8 <= len(room) {
		wordAt(room[f.noted:]).Store(0)
	}
	f.stepped()
	wordAt(b).Store(seal(f.seq))
	f.stepped()
}

func undoSum(b []byte, positions int) uint32 {
	sum := crc32.Update(1, castagnoli, b[12:undoHead])
	return crc32.Update(sum, castagnoli, b[undoHead:undoHead+positions])
}

// undoAll reverts what the transaction after the commit has changed. Records are applied
// from the last to the first, since bytes may have been saved twice and the first record
// has the committed ones.
func (c *content) undoAll(commit uint64) {
	// Extents of undo records are numbered as they came into use; their places in the
	// file say nothing, since freed ones are reused.
	slices.SortFunc(c.undo, func(a, b *found) int { return cmp.Compare(a.tag.D, b.tag.D) })
	var all [][]byte
	for _, e := range c.undo {
		for b := e.room; len(b) >= undoHead; {
			// Only records of the transaction that was not committed. An older one
			// ends the extent's list.
			seq, ok := unseal(getUint64(b))
			if !ok || seq != commit+1 {
				break
			}
			n, ok := c.undoLen(b)
			if !ok {
				break
			}
			all = append(all, b[:n])
			b = b[n:]
		}
	}
	for i := range all {
		c.takeBack(all[len(all)-1-i])
	}
}

// undoLen returns the length of the record at the beginning of b; ok is false if it is not
// one.
func (c *content) undoLen(b []byte) (n int, ok bool) {
	size, count := int(getUint32(b[12:])), getUint64(b[24:])
	positions := 0
	switch {
	case count > uint64(len(b)):
		return 0, false
	case size == 0:
		n = undoHead + pad(int(count))
	case size == 4 || size == 8:
		positions = 4 * int(count)
		n = undoHead + pad(positions) + pad(size*int(count))
	default:
		return 0, false
	}
	if n > len(b) || undoSum(b, positions) != getUint32(b[8:]) {
		return 0, false
	}
	return n, true
}

// takeBack writes the bytes of a record back to their extent. They have no checksum, but
// were in place before the record's word was.
func (c *content) takeBack(b []byte) {
	e := c.at[int64(getUint64(b[16:]))]
	if e == nil {
		return
	}
	size, n, from := int(getUint32(b[12:])), int(getUint64(b[24:])), getUint64(b[32:])
	if size == 0 {
		if from <= uint64(len(e.room)) {
			copy(e.room[from:], b[undoHead:undoHead+n])
		}
		return
	}
	values := b[undoHead+pad(4*n):]
	for i := range n {
		at := int(getUint32(b[undoHead+4*i:])) * size
		if at+size <= len(e.room) {
			copy(e.room[at:at+size], values[i*size:])
		}
	}
}
