package stream

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// tolerance is the fraction by which the busiest machine may stay above the mean.
const tolerance = 0.002

// blockBytes is how much of the file of parameters is in memory at a time.
const blockBytes = 64 << 10

// A book is a file of all parameters in ascending order of their ids, each with its owner and the
// set of machines that use it. It finds the owners as [partition.FlatOwners] does, but in passes
// over the file instead of in order of weight.
//
// A record is the id (8 bytes), the owner (2 bytes) and the set of users (8 bytes per 64 machines),
// in little endian.
type book struct {
	k, words int
	f        *os.File
	block    []byte
	params   int64
	// The number of (machine, parameter) pairs.
	edges int64
	// By machine, what it moves in a step.
	load []int64
	// The number of remote pairs.
	total int64
}

// newBook creates the file in dir, for k machines.
func newBook(dir string, k int) (*book, error) {
	f, err := os.CreateTemp(dir, "parameters-*")
	if err != nil {
		return nil, fmt.Errorf("making a file for the parameters: %w", err)
	}
	b := &book{k: k, words: SetWords(k), f: f, load: make([]int64, k)}
	b.block = make([]byte, 0, max(blockBytes/b.record(), 1)*b.record())
	return b, nil
}

// record returns the size of a parameter's record.
func (b *book) record() int { return 8 + 2 + 8*b.words }

// fill writes the file from the sorted pairs and counts the loads.
func (b *book) fill(ctx context.Context, pairs *SpillSorter) error {
	users := make([]uint64, b.words)
	var last uint64
	put := func() error {
		if len(b.block) == cap(b.block) {
			if err := b.flush(); err != nil {
				return err
			}
		}
		b.enter(last, users)
		clear(users)
		return nil
	}
	started := false
	err := pairs.Each(ctx, func(p SpilledPair) error {
		if started && p.ID != last {
			if err := put(); err != nil {
				return err
			}
		}
		started, last = true, p.ID
		users[p.Machine>>6] |= 1 << (p.Machine & 63)
		return nil
	})
	if err != nil {
		return err
	}
	if started {
		if err := put(); err != nil {
			return err
		}
	}
	return b.flush()
}

// enter adds a parameter to the block. Its first owner is its first user; level improves on that.
func (b *book) enter(id uint64, users []uint64) {
	owner, d := -1, CountMembers(users)
	for i := range Members(users) {
		if owner < 0 {
			owner = i
		}
		if d > 1 {
			b.load[i]++
		}
	}
	b.load[owner] += extra(d, true)
	b.params++
	b.edges += int64(d)
	b.total += int64(d) - 1
	b.block = binary.LittleEndian.AppendUint64(b.block, id)
	b.block = binary.LittleEndian.AppendUint16(b.block, uint16(owner))
	for _, word := range users {
		b.block = binary.LittleEndian.AppendUint64(b.block, word)
	}
}

// extra returns what owning a parameter with d users costs a machine in addition to its use. user
// says whether it uses the parameter itself.
func extra(d int, user bool) int64 {
	switch {
	case !user:
		return int64(d)
	case d == 1:
		return 0
	}
	return int64(d) - 2
}

func (b *book) flush() error {
	_, err := b.f.Write(b.block)
	b.block = b.block[:0]
	if err != nil {
		return fmt.Errorf("writing the file of parameters: %w", err)
	}
	return nil
}

// each calls visit with every parameter in order. If it returns another owner, that is written
// back.
func (b *book) each(ctx context.Context, visit func(id uint64, owner int, users []uint64) (newOwner int, err error)) error {
	users := make([]uint64, b.words)
	for at := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := b.f.ReadAt(b.block[:cap(b.block)], at)
		if err != nil && err != io.EOF {
			return fmt.Errorf("reading the file of parameters: %w", err)
		}
		if n == 0 {
			return nil
		}
		block, changed := b.block[:n], false
		for r := 0; r < n; r += b.record() {
			id := binary.LittleEndian.Uint64(block[r:])
			owner := int(binary.LittleEndian.Uint16(block[r+8:]))
			for i := range users {
				users[i] = binary.LittleEndian.Uint64(block[r+10+8*i:])
			}
			to, err := visit(id, owner, users)
			if err != nil {
				return err
			}
			if to != owner {
				binary.LittleEndian.PutUint16(block[r+8:], uint16(to))
				changed = true
			}
		}
		if changed {
			if _, err := b.f.WriteAt(block, at); err != nil {
				return fmt.Errorf("writing the file of parameters: %w", err)
			}
		}
		at += int64(n)
	}
}

// level finds owners in rounds over the file. In each, every parameter may go to the user of it
// that would be least busy. From the third round on, if that does not suffice, parameters that most
// machines use may also go to machines that do not use them, in every round those with fewer users.
// It ends when the loads are level.
func (b *book) level(ctx context.Context) error {
	for _, lendFrom := range []int{b.k + 1, b.k + 1, b.k - 1, max(3, b.k*3/4), max(3, b.k/2), 3} {
		if b.flat() {
			return nil
		}
		err := b.each(ctx, func(_ uint64, owner int, users []uint64) (int, error) {
			d := CountMembers(users)
			if d < 3 {
				return owner, nil // it costs any of its users alike
			}
			return b.better(owner, users, d, d >= lendFrom), nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// flat reports whether no machine is above the mean by more than the tolerance.
func (b *book) flat() bool {
	most, _ := b.most()
	return float64(most) <= b.mean()*(1+tolerance)
}

// most returns the largest load and its machine.
func (b *book) most() (int64, int) {
	at := 0
	for i := range b.load {
		if b.load[i] > b.load[at] {
			at = i
		}
	}
	return b.load[at], at
}

// mean returns the mean load: each remote pair counts at both its ends.
func (b *book) mean() float64 { return 2 * float64(b.total) / float64(b.k) }

// better returns the best owner of a parameter with d users, and moves its load there.
func (b *book) better(owner int, users []uint64, d int, lend bool) int {
	was := HasMember(users, owner)
	before := b.load[owner]
	b.load[owner] -= extra(d, was)
	to, least := owner, before
	for i := range Members(users) {
		if l := b.load[i] + extra(d, true); l < least {
			to, least = i, l
		}
	}
	if lend && to == owner && float64(before) > b.mean()*(1+tolerance) {
		for i := range b.k {
			if l := b.load[i] + extra(d, HasMember(users, i)); l < least {
				to, least = i, l
			}
		}
	}
	is := HasMember(users, to)
	b.load[to] += extra(d, is)
	if was && !is {
		b.total++
	} else if is && !was {
		b.total--
	}
	return to
}

// Close closes and removes the file.
func (b *book) Close() error {
	err := b.f.Close()
	if e := os.Remove(b.f.Name()); err == nil {
		err = e
	}
	return err
}
