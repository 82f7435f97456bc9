package pipeline

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"

	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"

	"github.com/psidecar/psidecar/planner/partition/blocks"
)

// init registers the functions with Beam.
func init() {
	register.DoFn6x1[context.Context, int64, func(*[]byte) bool, string, func(int64, []byte), func(int64, []byte), error](&ownFn{})
	register.DoFn5x1[context.Context, int64, []byte, string, func(int64, []byte), error](&samplesFn{})
}

// A kind of part of the outcome. Parts of a kind are numbered in the order of what is in them,
// so that parts one after the other are a file of the outcome.
type kind int64

const (
	samples kind = iota // machines of samples, as lines
	params              // owners of features, as lines
	keys                // owners of keys, as records
	kinds
)

// kindAt is the bit of a part's key at which its kind begins.
const kindAt = 32

// String returns the kind as it is in the names of files.
func (k kind) String() string { return [...]string{"samples", "params", "keys"}[k] }

// partKey returns the key of a part. Parts have no class; each kind is spread over the lanes.
func (c *Config) partKey(of kind, part int) int64 {
	return int64(part%c.Lanes)<<below | int64(of)<<kindAt | int64(part)
}

// partSamples is about how many samples a part of the outcome has. A part is written by one
// worker, in memory.
const partSamples = 1 << 20

// groups returns how many groups of samples, see [blocks.Layout], a part has. Parts are cut
// between groups, so that each block gives a part the same number of samples.
func (m *Meta) groups() int64 { return int64(max(1, partSamples/m.Blocks)) }

// parts returns the number of parts of a kind.
func (m *Meta) parts(of kind) int {
	if of != samples {
		return len(m.Splits) + 1
	}
	each := m.groups() * int64(m.Blocks)
	return int((m.Samples + each - 1) / each)
}

// featurePart returns the part of a feature: the first whose split is not below it, or the
// last.
func (m *Meta) featurePart(id uint64) int {
	return sort.Search(len(m.Splits), func(i int) bool { return id <= m.Splits[i] })
}

// keyPart returns the part of a key. Identical keys are cut where features are; spread keys are
// even over 64 bits, and are cut into equal stretches.
func (m *Meta) keyPart(key uint64, keyMap string) int {
	if keyMap == "identity" {
		return m.featurePart(key)
	}
	part, _ := bits.Mul64(key, uint64(m.parts(keys)))
	return int(part)
}

// A sums is what a bucket adds to the report, as JSON.
type sums struct {
	Params, Total int64   // Total counts what all machines move in a step
	PerMachine    []int64 // what each moves
	Used          []int64 // parameters that each uses
}

// ownFn finds the owners of a bucket's features, when all blocks have their machines.
type ownFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement emits features and keys with their owners for the parts of the outcome, and
// sums for the report.
func (f *ownFn) ProcessElement(ctx context.Context, _ int64, lists func(*[]byte) bool, meta string, parts, report func(int64, []byte)) error {
	m, err := f.cache.get(meta)
	if err != nil {
		return err
	}
	defer f.Config.takeTurn()()
	all, err := decodeLists(lists, f.Config.K)
	if err != nil {
		return err
	}
	bucket := blocks.NewBucket(f.Config.K, all)
	owners, err := bucket.Owners(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(f.Config.sum(bucket, owners))
	if err != nil {
		return fmt.Errorf("encoding a report: %w", err)
	}
	report(0, append([]byte{tagSums}, text...))
	keyMap, err := f.Config.keyMap()
	if err != nil {
		return err
	}
	wire := make([]owned, len(owners))
	ids := make([]owned, len(owners))
	for p, id := range bucket.IDs {
		key, err := keyMap.Key(id)
		if err != nil {
			return fmt.Errorf("placing feature id %d: %w", id, err)
		}
		ids[p], wire[p] = owned{id, uint16(owners[p])}, owned{key, uint16(owners[p])}
	}
	// A key map need not keep the order, which emitParts relies on.
	sortOwned(wire)
	emitParts(ids, m.featurePart, func(part int, v []byte) { parts(f.Config.partKey(params, part), v) })
	emitParts(wire, func(key uint64) int { return m.keyPart(key, f.Config.KeyMap) },
		func(part int, v []byte) { parts(f.Config.partKey(keys, part), v) })
	return nil
}

// sum measures a bucket as [partition.Measure] does a whole partition. Its figures can be added
// up over buckets, since each parameter is in one.
func (c *Config) sum(b *blocks.Bucket, owners []int32) *sums {
	s := &sums{Params: int64(len(owners)), PerMachine: make([]int64, c.K), Used: make([]int64, c.K)}
	for p, owner := range owners {
		for i := range blocks.Members(b.Users(p)) {
			s.Used[i]++
			if i != int(owner) {
				s.PerMachine[i]++
				s.PerMachine[owner]++
				s.Total++
			}
		}
	}
	return s
}

// An owned is a feature or key and the machine that owns it.
type owned struct {
	id    uint64
	owner uint16
}

// sortOwned sorts by id.
func sortOwned(list []owned) {
	slices.SortFunc(list, func(a, b owned) int { return cmp.Compare(a.id, b.id) })
}

// emitParts emits an ascending list cut into its parts, each encoded as pairs of varints:
// distance to the id before, and owner. partOf must not descend.
func emitParts(list []owned, partOf func(uint64) int, emit func(part int, value []byte)) {
	for from := 0; from < len(list); {
		part := partOf(list[from].id)
		to := from + sort.Search(len(list)-from, func(i int) bool { return partOf(list[from+i].id) > part })
		value := make([]byte, 0, 4*(to-from))
		var last uint64
		for _, o := range list[from:to] {
			value = binary.AppendUvarint(value, o.id-last)
			value = binary.AppendUvarint(value, uint64(o.owner))
			last = o.id
		}
		emit(part, value)
		from = to
	}
}

// decodeOwned appends what emitParts emitted to list, or returns [blocks.ErrDamaged].
func decodeOwned(value []byte, list []owned) ([]owned, error) {
	var last uint64
	for len(value) > 0 {
		step, n := binary.Uvarint(value)
		owner, more := uint64(0), 0
		if n > 0 {
			owner, more = binary.Uvarint(value[n:])
		}
		// A sum below last is one beyond 64 bits.
		if n <= 0 || more <= 0 || owner > math.MaxUint16 || last+step < last {
			return nil, fmt.Errorf("%w: owners", blocks.ErrDamaged)
		}
		value = value[n+more:]
		last += step
		list = append(list, owned{last, uint16(owner)})
	}
	return list, nil
}

// samplesFn gives the machines of a block's samples to the parts of the outcome. It takes no
// turn: the engine may run it within the function that emits the block, which has the turn
// then.
type samplesFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement emits, for each part, the block's number and its machines.
func (f *samplesFn) ProcessElement(_ context.Context, _ int64, state []byte, meta string, emit func(int64, []byte)) error {
	m, err := f.cache.get(meta)
	if err != nil {
		return err
	}
	if len(state) == 0 || state[0] != tagBlock {
		return fmt.Errorf("%w: no block", blocks.ErrDamaged)
	}
	b, err := blocks.DecodeBlock(state[1:])
	if err != nil {
		return err
	}
	// A block has one sample of each group, so a part takes as many of each block as it has
	// groups.
	each := int(m.groups())
	for from := 0; from < len(b.On); from += each {
		value := binary.AppendUvarint(nil, uint64(b.Number))
		for _, machine := range b.On[from:min(from+each, len(b.On))] {
			value = binary.LittleEndian.AppendUint16(value, machine)
		}
		emit(f.Config.partKey(samples, from/each), value)
	}
	return nil
}
