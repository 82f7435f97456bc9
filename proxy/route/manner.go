package route

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// StayError names the keys of an op that nobody knows how to ask for: see ErrCommands.
type StayError struct{ Keys []uint64 }

func (e *StayError) Error() string {
	return fmt.Sprintf("%d keys, the first of which is %d: %v", len(e.Keys), e.Keys[0], ErrCommands)
}

func (e *StayError) Unwrap() error { return ErrCommands }

// manner is how a key is asked for: as which uses it is pushed and pulled.
type manner struct{ push, pull *Use }

func (m manner) use(push bool) *Use {
	if push {
		return m.push
	}
	return m.pull
}

// mannerOf returns how to ask for a key that is used in some of these ways. Where no worker has pushed it yet, or pulled
// it, the command is that of the other, if workers do so with other keys, or the only one that there is.
func mannerOf(all []Use, key uint64) (m manner, err error) {
	if m.push, err = useOfKey(all, true, key); err == nil {
		m.pull, err = useOfKey(all, false, key)
	}
	if m.push == nil && m.pull == nil && heads(all, true) <= 1 && heads(all, false) <= 1 {
		m = manner{firstUse(all, (*Use).pushes), firstUse(all, (*Use).pulls)}
	}
	if m.push == nil {
		m.push = counterpart(all, true, m.pull)
	}
	if m.pull == nil {
		m.pull = counterpart(all, false, m.push)
	}
	if err != nil || m.push == nil || m.pull == nil {
		return m, ErrCommands
	}
	return m, nil
}

func (u *Use) pushes() bool { return u.Push }
func (u *Use) pulls() bool  { return u.Pull }

func (u *Use) is(push bool) bool { return push && u.Push || !push && u.Pull }

// useOfKey returns the use that pushes, or pulls, a key; nil where none does, and an error where several commands do.
func useOfKey(all []Use, push bool, key uint64) (one *Use, err error) {
	for i := range all {
		u := &all[i]
		switch {
		case !u.is(push) || !covers(u.Keys, plan.One(key)):
		case one != nil && one.Head != u.Head:
			return nil, ErrCommands
		case one == nil || u.Push != u.Pull: // rather than both at once
			one = u
		}
	}
	return one, nil
}

// counterpart returns the use that pushes, or pulls, where another use has a key and none does so: nil where there are
// several.
func counterpart(all []Use, push bool, of *Use) *Use {
	if of == nil {
		return nil
	}
	if u := firstUse(all, func(u *Use) bool { return u.is(push) && u.Head == of.Head }); u != nil {
		return u
	}
	switch {
	case heads(all, push) == 0: // nobody does
		return of
	case heads(all, push) == 1 && heads(all, !push) == 1:
		return firstUse(all, func(u *Use) bool { return u.is(push) })
	}
	return nil
}

func firstUse(all []Use, which func(*Use) bool) *Use {
	for i := range all {
		if which(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// heads returns the number of commands of all pushes, or pulls.
func heads(all []Use, push bool) int {
	var heads []int32
	for i := range all {
		if all[i].is(push) && !slices.Contains(heads, all[i].Head) {
			heads = append(heads, all[i].Head)
		}
	}
	return len(heads)
}

// manners returns how to ask for each key of an op. It checks all of them before anything is sent.
func (r *Router) manners(op *Op) ([]manner, error) {
	all := op.Uses
	if all == nil {
		all = r.Uses([]plan.Keys{{Last: math.MaxUint64}})
	}
	if r.app != pslite.Empty { // keys of others are never displaced
		all = slices.DeleteFunc(slices.Clone(all), func(u Use) bool { return u.App != r.app })
	}
	manners := make([]manner, len(op.Keys))
	var stay []uint64
	for i, key := range op.Keys {
		var err error
		if manners[i], err = mannerOf(all, key); err != nil {
			stay = append(stay, key)
		}
	}
	if len(stay) > 0 {
		return nil, &StayError{stay}
	}
	return manners, nil
}

// letterKeys returns how many of the op's keys, from an index on, go into one message: no more than the workers have in
// their own, which servers may check. Where keys may have different numbers of values it is one: an answer to a pull need
// not have lengths, so with several keys nobody could tell whose the values are.
func letterKeys(op *Op, manners []manner, from int) int {
	m := manners[from]
	if m.push.Lens || m.pull.Lens || m.push.Width <= 0 {
		return 1
	}
	n := 1
	for most := min(maxLetter, m.use(op.Push).Most, len(op.Keys)-from); n < most; n++ {
		if manners[from+n] != m || op.Push && len(op.Values[from+n]) != len(op.Values[from]) {
			break
		}
	}
	return n
}

// compose makes a message like the workers' own, so that the server's handler sees the app,
// customer, command, types and lengths that it is used to. It copies the values.
func (r *Router) compose(w *worker, l *letter, values [][]byte, own int32) [][]byte {
	push, u := l.op.Push, l.manner.use(l.op.Push)
	meta := r.like(u, push).Clone()
	meta.Head, meta.AppID = u.Head, u.App
	meta.Timestamp, meta.Push, meta.Pull, meta.Request = own, push, !push, true
	meta.DataTypes = []pslite.DataType{pslite.Uint64, u.Type}
	data := [][]byte{pslite.AppendKeys(nil, l.keys), {}}
	if push {
		data[1] = slices.Concat(values...)
	}
	if push && u.Lens {
		var lens []byte
		for _, v := range values {
			lens = binary.LittleEndian.AppendUint32(lens, uint32(len(v)/u.Type.Size()))
		}
		data, meta.DataTypes = append(data, lens), append(meta.DataTypes, pslite.Int32)
	}
	meta.DataSize = int32(total(data))
	return append([][]byte{meta.Append(nil, w.speaks)}, data...)
}

// like returns a request of this host's workers that is most like those of a use.
func (r *Router) like(u *Use, push bool) *pslite.Meta {
	best, alike := (*pslite.Meta)(nil), -1
	for _, mine := range r.uses {
		n := 0
		if mine.is(push) {
			n++
		}
		if mine.App == u.App {
			n += 2
		}
		if mine.Head == u.Head {
			n += 4
		}
		if mine.like != nil && n > alike {
			best, alike = mine.like, n
		}
	}
	return best
}
