package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// ErrDamaged says that a store does not hold what was written to it. Trying again does not help; an
// operator has to replace the file.
var ErrDamaged = errors.New("the store is damaged")

// A value in a file is sealed: sealMagic, CRC-32C of name and value, value. No
// value of a caller's begins like that: JSON is text, and no protobuf message
// begins with a zero byte.
var sealMagic = []byte{0, 'p', 's', '1'}

// sealSize is the number of bytes ahead of a sealed value: the magic and the checksum.
const sealSize = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is of the name too, so that a value cannot pass for that of another entry.
func checksum(name, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(name, castagnoli), castagnoli, value)
}

// seal returns a copy of a value with its checksum ahead of it.
func seal(name, value []byte) []byte {
	b := make([]byte, 0, sealSize+len(value))
	b = append(b, sealMagic...)
	b = binary.LittleEndian.AppendUint32(b, checksum(name, value))
	return append(b, value...)
}

// sealed reports whether a stored value has a checksum. Values of old files have none.
func sealed(b []byte) bool { return len(b) >= sealSize && bytes.HasPrefix(b, sealMagic) }

// unseal is the inverse of seal. The value that it returns shares b's memory.
func unseal(name, b []byte) ([]byte, error) {
	if !sealed(b) {
		return nil, fmt.Errorf("entry %q has no checksum", name)
	}
	value := b[sealSize:]
	if binary.LittleEndian.Uint32(b[len(sealMagic):]) != checksum(name, value) {
		return nil, fmt.Errorf("entry %q does not fit its checksum", name)
	}
	return value, nil
}

// An inventory says which entries a file must have: how many, and the sum of their digests modulo
// 2^64, which does not depend on their order and is updated in constant time per write. A checksum
// shows that an entry is whole; only the inventory shows that one is missing, or is an older
// version of itself. Each transaction writes it together with the entries.
//
// Two words of SHA-256 make an accidental match negligible. They are no protection against somebody
// who wants to forge a file.
type inventory struct {
	count  uint64
	digest [2]uint64
}

const (
	inventoryFormat = 1
	inventorySize   = 1 + 3*8
)

// addEntry and remove keep the inventory in step with the entries. An entry is replaced by removing
// the old value and adding the new one.
func (v *inventory) addEntry(name, value []byte) { v.change(name, value, 1) }
func (v *inventory) remove(name, value []byte)   { v.change(name, value, ^uint64(0)) }

// change adds an entry to the sums times times; -1 modulo 2^64 removes it.
func (v *inventory) change(name, value []byte, times uint64) {
	h := sha256.New()
	// The length keeps apart a name and a value that are divided elsewhere.
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(name))))
	h.Write(name)
	h.Write(value)
	sum := h.Sum(nil)
	v.count += times
	v.digest[0] += times * binary.LittleEndian.Uint64(sum)
	v.digest[1] += times * binary.LittleEndian.Uint64(sum[8:])
}

// encode returns the stored form: the format, then count and digest in little endian, sealed.
func (v *inventory) encode() []byte {
	b := []byte{inventoryFormat}
	for _, n := range []uint64{v.count, v.digest[0], v.digest[1]} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return seal(inventoryKey, b)
}

// decodeInventory is the inverse of encode. Another format than inventoryFormat is an error rather
// than ignored: a newer psidecar may have written entries that this one would drop.
func decodeInventory(b []byte) (v inventory, err error) {
	if b, err = unseal(inventoryKey, b); err != nil {
		return v, err
	}
	if len(b) != inventorySize || b[0] != inventoryFormat {
		return v, fmt.Errorf("its inventory has another format than %d: another psidecar, probably a newer one, has written it", inventoryFormat)
	}
	for i, n := range []*uint64{&v.count, &v.digest[0], &v.digest[1]} {
		*n = binary.LittleEndian.Uint64(b[1+8*i:])
	}
	return v, nil
}
