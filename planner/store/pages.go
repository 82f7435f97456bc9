package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt trusts its file. If the file is damaged bbolt panics, in goroutines of its own too, or
// reads beyond the mapping. So the file is walked and verified before bbolt opens it. This is
// bbolt's format 2, in the byte order of the machine:
//
//	page      id u64, flags u16, count u16, overflow u32, then count elements
//	branch    pos u32, key size u32, page u64
//	leaf      flags u32, pos u32, key size u32, value size u32
//	meta      magic, version, page size, flags u32; root bucket; freelist,
//	          pages, transaction u64; FNV-1a of all that, u64
//	bucket    root page u64, sequence u64; with root 0 a page follows
//
// pos counts from the element's own first byte. Pages 0 and 1 are meta pages; the one with the
// higher transaction is current.
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
	// noFreelist is in place of the freelist's page if the freelist is not stored, as with
	// NoFreelistSync.
	noFreelist = ^uint64(0)

	// maxDepth bounds recursion on a damaged tree. A tree of that depth would be far beyond any
	// disk.
	maxDepth    = 32
	maxPageSize = 64 << 10
)

var order = binary.NativeEndian

// meta is the part of a meta page that the walk needs. pages is the number of pages in use, the
// meta pages included.
type meta struct {
	pageSize                           int
	root, freelist, pages, transaction uint64
}

// walk reads a whole file of bbolt's and calls each for every entry of every bucket, and once with
// a nil key for the bucket itself. key and value are valid only during the call. An error means
// that the file is damaged, or cannot be read. It reads each page once and holds one path of the
// tree in memory.
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

// readMetas checks both meta pages and returns the newer one. Both must be valid. bbolt alone would
// accept a single valid one, which is the state before the last transaction: an acknowledged write
// would be lost without a word. A meta page lies within one sector, so a crash does not tear it.
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
	// bbolt writes the meta pages in turn. Any other difference means that a write of one of them
	// was lost.
	case first.transaction+1 != second.transaction && second.transaction+1 != first.transaction:
		return meta{}, fmt.Errorf("its last two transactions are %d and %d", first.transaction, second.transaction)
	// The file was cut.
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

// A walker walks the tree of pages and checks that every page is used at most once: a page that two
// parents refer to would show the entries of one of them in the place of the other's.
type walker struct {
	file io.ReaderAt
	meta meta
	// By page; pages of the freelist are marked too.
	seen []bool
	each func(bucket string, key, value []byte) error
	// The bucket whose pages are being walked; "" for the list of buckets.
	bucket string
}

// bounds are the keys that may be below a page: from first up to, but without, end. nil means no
// bound.
type bounds struct{ first, end []byte }

// readPage returns a page together with its overflow pages, and marks all of them as seen.
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

// tree walks the subtree of a page, whose keys must lie within b.
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

// branch checks an inner page and walks its children. The keys of a child must lie between its own
// separator and the next one; bbolt relies on that when it searches.
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

// hold reports whether a key lies within the bounds.
func (b bounds) hold(key []byte) bool {
	return bytes.Compare(key, b.first) >= 0 && (b.end == nil || bytes.Compare(key, b.end) < 0)
}

// leaf checks a page of entries: keys must ascend within the bounds, keys and values lie within the
// page.
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

// cut returns the key of the element at offset at, which begins pos bytes after the element.
// elements is the number of bytes from there to the end of the element array, which no key may
// overlap.
func cut(page []byte, at, elements int, pos, size uint32) ([]byte, error) {
	if int64(pos) < int64(elements) || size == 0 || int64(at)+int64(pos)+int64(size) > int64(len(page)) {
		return nil, fmt.Errorf("a key of %d bytes, %d bytes on", size, pos)
	}
	return page[at+int(pos) : at+int(pos)+int(size)], nil
}

// entry handles an entry of a bucket, or, at the top level, the header of a bucket. psidecar has no
// nested buckets, so one within a bucket is damage.
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
	// bbolt keeps a small bucket inline, as a page behind its header.
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || order.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("bucket %q has neither a page nor an inline page", key)
	}
	return w.leaf(inline, bounds{})
}

// freelist checks the list of free pages, if the file has one: none of them may be in use.
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
	// A longer list has its length in its first element.
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
