package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt trusts its file: on a damaged one it panics, in goroutines of its own too,
// or reads beyond the data. So the file is walked before bbolt has it. This is
// bbolt's format 2, in the byte order of the machine:
//
//	page      id u64, flags u16, count u16, overflow u32, then count elements
//	branch    pos u32, key size u32, page u64
//	leaf      flags u32, pos u32, key size u32, value size u32
//	meta      magic, version, page size, flags u32; root bucket; freelist,
//	          pages, transaction u64; FNV-1a of all that, u64
//	bucket    root page u64, sequence u64; with root 0 a page follows
//
// pos counts from the element's own first byte. Pages 0 and 1 are meta pages;
// the one with the higher transaction counts.
const (
	pageHeader    = 16
	branchElement = 16
	leafElement   = 16
	bucketHeader  = 16
	metaSize      = 64

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketFlag   = 0x01

	boltMagic   = 0xED0CDAED
	boltVersion = 2
	noFreelist  = ^uint64(0)

	maxDepth    = 32
	maxPageSize = 64 << 10
)

var order = binary.NativeEndian

// meta is what a meta page says.
type meta struct {
	pageSize                           int
	root, freelist, pages, transaction uint64
}

// walk reads a whole file of bbolt's and hands each entry of each bucket to
// each, which must not keep key and value. An error means that the file is
// damaged, or cannot be read.
func walk(file io.ReaderAt, size int64, each func(bucket string, key, value []byte) error) (meta, error) {
	m, err := readMetas(file, size)
	if err != nil {
		return m, err
	}
	w := walker{file: file, meta: m, seen: make([]bool, m.pages), each: each}
	if err := w.tree(m.root, bounds{}, 0); err != nil {
		return m, err
	}
	return m, w.freelist()
}

// readMetas returns what the newer meta page says. Both must be whole: a meta
// page is overwritten in one sector, so that not even a crash tears it, and one
// alone would pass for the state before the last write.
func readMetas(file io.ReaderAt, size int64) (newer meta, err error) {
	first, err := readMeta(file, 0)
	if err != nil {
		return meta{}, err
	}
	second, err := readMeta(file, int64(first.pageSize))
	if err != nil {
		return meta{}, err
	}
	newer = first
	if second.transaction > first.transaction {
		newer = second
	}
	switch {
	case first.transaction+1 != second.transaction && second.transaction+1 != first.transaction:
		return meta{}, fmt.Errorf("its last two transactions are %d and %d", first.transaction, second.transaction)
	case newer.pages > uint64(size)/uint64(newer.pageSize):
		return meta{}, fmt.Errorf("it has %d bytes, and %d pages of %d bytes are in use", size, newer.pages, newer.pageSize)
	}
	return newer, nil
}

// readMeta reads and checks one of the file's two meta pages.
func readMeta(file io.ReaderAt, at int64) (m meta, err error) {
	var b [pageHeader + metaSize]byte
	if _, err := file.ReadAt(b[:], at); err != nil {
		return m, fmt.Errorf("its meta page at byte %d cannot be read: %w", at, err)
	}
	body := b[pageHeader:]
	sum := fnv.New64a()
	sum.Write(body[:metaSize-8])
	switch {
	case order.Uint32(body) != boltMagic:
		return m, fmt.Errorf("no meta page at byte %d", at)
	case order.Uint32(body[4:]) != boltVersion:
		return m, fmt.Errorf("its meta page at byte %d has version %d", at, order.Uint32(body[4:]))
	case order.Uint64(body[metaSize-8:]) != sum.Sum64():
		return m, fmt.Errorf("its meta page at byte %d does not fit its checksum", at)
	}
	m = meta{
		pageSize: int(order.Uint32(body[8:])), root: order.Uint64(body[16:]), freelist: order.Uint64(body[32:]),
		pages: order.Uint64(body[40:]), transaction: order.Uint64(body[48:]),
	}
	if m.pageSize < 512 || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0 {
		return m, fmt.Errorf("its meta page at byte %d has pages of %d bytes", at, m.pageSize)
	}
	return m, nil
}

// walker walks the tree of pages. Each page is in use once.
type walker struct {
	file   io.ReaderAt
	meta   meta
	seen   []bool // by page
	each   func(bucket string, key, value []byte) error
	bucket string // whose pages these are; empty: of the list of buckets
}

// bounds are between which keys a page's must be: from first, to before end,
// where they are not nil.
type bounds struct{ first, end []byte }

// readPage returns a page with those that it overflows into, and marks them as seen.
func (w *walker) readPage(id uint64) ([]byte, error) {
	if id < 2 || id >= w.meta.pages {
		return nil, fmt.Errorf("page %d is referred to: there are 2 to %d", id, w.meta.pages-1)
	}
	var header [pageHeader]byte
	at := int64(id) * int64(w.meta.pageSize)
	if _, err := w.file.ReadAt(header[:], at); err != nil {
		return nil, fmt.Errorf("page %d cannot be read: %w", id, err)
	}
	n := uint64(order.Uint32(header[12:])) + 1
	switch {
	case order.Uint64(header[:]) != id:
		return nil, fmt.Errorf("page %d says that it is page %d", id, order.Uint64(header[:]))
	case n > w.meta.pages-id:
		return nil, fmt.Errorf("page %d is %d pages long", id, n)
	}
	for i := range n {
		if w.seen[id+i] {
			return nil, fmt.Errorf("page %d is in use twice", id+i)
		}
		w.seen[id+i] = true
	}
	page := make([]byte, n*uint64(w.meta.pageSize))
	if _, err := w.file.ReadAt(page, at); err != nil {
		return nil, fmt.Errorf("page %d cannot be read: %w", id, err)
	}
	return page, nil
}

// tree walks the pages below a page.
func (w *walker) tree(id uint64, b bounds, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d is more than %d pages deep", id, maxDepth)
	}
	page, err := w.readPage(id)
	if err != nil {
		return err
	}
	switch flags := order.Uint16(page[8:]); flags {
	case leafPage:
		err = w.leaf(page, b)
	case branchPage:
		err = w.branch(page, b, depth)
	default:
		err = fmt.Errorf("flags %#x", flags)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// branch checks an inner page of the tree and walks the pages below it, each of which
// must keep within the keys of its neighbours.
func (w *walker) branch(page []byte, b bounds, depth int) error {
	n := int(order.Uint16(page[10:]))
	if n == 0 || pageHeader+n*branchElement > len(page) {
		return fmt.Errorf("%d branches", n)
	}
	keys, pages := make([][]byte, n), make([]uint64, n)
	for i := range n {
		at := pageHeader + i*branchElement
		key, err := cut(page, at, n*branchElement-i*branchElement, order.Uint32(page[at:]), order.Uint32(page[at+4:]))
		if err != nil {
			return fmt.Errorf("branch %d: %w", i, err)
		}
		if i > 0 && bytes.Compare(keys[i-1], key) >= 0 || !b.hold(key) {
			return fmt.Errorf("branch %d has a key out of order", i)
		}
		keys[i], pages[i] = key, order.Uint64(page[at+8:])
	}
	for i, id := range pages {
		below := bounds{keys[i], b.end}
		if i+1 < n {
			below.end = keys[i+1]
		}
		if err := w.tree(id, below, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (b bounds) hold(key []byte) bool {
	return bytes.Compare(key, b.first) >= 0 && (b.end == nil || bytes.Compare(key, b.end) < 0)
}

// leaf checks a page of entries: their keys must ascend within the page's bounds, and
// their values lie within the page.
func (w *walker) leaf(page []byte, b bounds) error {
	n := int(order.Uint16(page[10:]))
	if pageHeader+n*leafElement > len(page) {
		return fmt.Errorf("%d entries", n)
	}
	var last []byte
	for i := range n {
		at := pageHeader + i*leafElement
		flags, pos, ksize, vsize := order.Uint32(page[at:]), order.Uint32(page[at+4:]), order.Uint32(page[at+8:]), order.Uint32(page[at+12:])
		key, err := cut(page, at, (n-i)*leafElement, pos, ksize)
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if i > 0 && bytes.Compare(last, key) >= 0 || !b.hold(key) {
			return fmt.Errorf("entry %d has a key out of order", i)
		}
		value := page[at+int(pos)+int(ksize):]
		if uint64(vsize) > uint64(len(value)) {
			return fmt.Errorf("entry %d has a value of %d bytes", i, vsize)
		}
		if err := w.entry(flags, key, value[:vsize]); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		last = key
	}
	return nil
}

// cut returns the key of the element at a place: pos bytes behind it. pos is never
// below elements, where the elements themselves end.
func cut(page []byte, at, elements int, pos, size uint32) ([]byte, error) {
	if int64(pos) < int64(elements) || size == 0 || int64(at)+int64(pos)+int64(size) > int64(len(page)) {
		return nil, fmt.Errorf("a key of %d bytes, %d bytes on", size, pos)
	}
	return page[at+int(pos) : at+int(pos)+int(size)], nil
}

// entry takes an entry of a bucket, or one of the list of buckets.
func (w *walker) entry(flags uint32, key, value []byte) error {
	switch {
	case flags == 0 && w.bucket != "":
		return w.each(w.bucket, key, value)
	case flags != bucketFlag || w.bucket != "":
		return fmt.Errorf("flags %#x", flags)
	case len(value) < bucketHeader:
		return fmt.Errorf("a bucket of %d bytes", len(value))
	}
	w.bucket = string(key)
	defer func() { w.bucket = "" }()
	if err := w.each(w.bucket, nil, nil); err != nil {
		return err
	}
	if root := order.Uint64(value); root != 0 {
		return w.tree(root, bounds{}, 1)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || order.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("bucket %q has no page of its own, and none beside it", key)
	}
	return w.leaf(inline, bounds{})
}

// freelist checks the list of free pages, where the file has one.
func (w *walker) freelist() error {
	if w.meta.freelist == noFreelist {
		return nil
	}
	page, err := w.readPage(w.meta.freelist)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	ids := page[pageHeader:]
	n := uint64(order.Uint16(page[10:]))
	if n == 0xFFFF && len(ids) >= 8 {
		n, ids = order.Uint64(ids), ids[8:]
	}
	if order.Uint16(page[8:]) != freelistPage || n > uint64(len(ids)/8) {
		return fmt.Errorf("list of free pages: flags %#x, %d pages", order.Uint16(page[8:]), n)
	}
	for i := range n {
		id := order.Uint64(ids[8*i:])
		if id < 2 || id >= w.meta.pages || w.seen[id] {
			return fmt.Errorf("list of free pages: page %d is not free", id)
		}
		w.seen[id] = true
	}
	return nil
}
