package dynamic

import (
	"math"
	"slices"
)

// rates are how much each machine uses each item: for each item a short list of users, sorted by
// machine, all lists in one arena.
//
// All rates fade together, by one factor, since how much an item is used is a matter of time. Which
// share each machine has is a matter of uses: the last ones count, however long they took, so that
// hot items follow their users at once and cold ones do not follow chance.
//
// A list that outgrows its room moves to the end of the arena and leaves a gap; compact closes the
// gaps.
type rates struct {
	// Bytes per step are a rate times scale. Fading multiplies scale alone.
	scale float64
	seen  []sight // by item
	// By item, the position of its list in arena.
	start   []int64
	length  []uint16
	room    []uint16
	arena   []user
	scratch []uint8
}

// A sight is the evidence for the shares of an item's users.
type sight struct {
	// The number of uses that the shares rest on, at most evidence.
	uses float32
	// How many of them, the last ones, were by one machine alone, by.
	run float32
	by  int32 // that machine
}

// A user is a machine that uses an item, and how much.
type user struct {
	machine int32
	rate    float32
}

// appendItem makes room for one more item.
func (r *rates) appendItem() {
	r.start, r.length, r.room, r.seen = append(r.start, 0), append(r.length, 0), append(r.room, 0), append(r.seen, sight{})
}

// of returns the users of an item, by machine.
func (r *rates) of(item int32) []user {
	return r.arena[r.start[item] : r.start[item]+int64(r.length[item])]
}

// at returns the rate of one machine, 0 if it does not use the item.
func (r *rates) at(item, machine int32) float64 {
	for _, u := range r.of(item) {
		if u.machine == machine {
			return float64(u.rate)
		}
	}
	return 0
}

// part returns the share of one machine in an item's rate.
func (r *rates) part(item, machine int32) float64 {
	sum := 0.0
	for _, u := range r.of(item) {
		sum += float64(u.rate)
	}
	if sum == 0 {
		return 0
	}
	return r.at(item, machine) / sum
}

// use records the uses of one item in an epoch, by machine. The item's total rate grows by the
// bytes times weight. The shares become a mean of the old ones and those of the new uses, weighted
// by evidence; each is the bytes of one use. Machines that were not heard bring no evidence, and
// uses of no bytes change nothing: there is nothing that shares could be of. changed is called with
// the growth of every rate.
func (r *rates) use(item int32, uses []Use, heard []bool, weight, each float64, changed func(machine int32, by float64)) {
	if !slices.ContainsFunc(uses, func(u Use) bool { return u.Bytes > 0 }) {
		return
	}
	at, bytes, seen := int32(0), 0.0, 0.0 // users are by machine too
	users := r.of(item)
	for _, u := range uses {
		for at < int32(len(users)) && users[at].machine < u.Machine {
			at++
		}
		if at == int32(len(users)) || users[at].machine != u.Machine {
			users = r.insert(item, at, u.Machine, len(uses))
		}
		bytes += float64(u.Bytes)
		if heard == nil || heard[u.Machine] {
			seen += float64(u.Bytes)
		}
	}
	before, sole := 0.0, 0.0
	for _, u := range users {
		before += float64(u.rate)
		if u.machine == uses[0].Machine {
			sole = float64(u.rate)
		}
	}
	if before > 0 {
		sole /= before
	} else {
		r.seen[item] = sight{} // of users that are forgotten
	}
	part := r.seen[item].look(sole, seen/each, uses)
	old, fresh := 0.0, (before+bytes*weight)*part/bytes
	if before > 0 {
		old = (before + bytes*weight) * (1 - part) / before
	}
	next := 0
	for i := range users {
		u := &users[i]
		rate := old * float64(u.rate)
		if next < len(uses) && uses[next].Machine == u.machine {
			rate += fresh * float64(uses[next].Bytes)
			next++
		}
		was := u.rate
		u.rate = float32(rate)
		changed(u.machine, float64(u.rate)-float64(was))
	}
}

// leave forgets what a machine did with an item, and returns its rate.
func (r *rates) leave(d Departure) (rate float64) {
	users := r.of(d.Item)
	at := slices.IndexFunc(users, func(u user) bool { return u.machine == d.Machine })
	if at < 0 {
		return 0
	}
	rate = float64(users[at].rate)
	copy(users[at:], users[at+1:])
	r.length[d.Item]--
	if !slices.ContainsFunc(r.of(d.Item), func(u user) bool { return u.rate > 0 }) {
		r.seen[d.Item] = sight{}
	}
	return rate
}

const (
	// evidence is how many uses of an item are remembered.
	evidence = 16
	// unlikely is what ends an item's past: uses by one machine alone that have
	// this chance, or less, if its part were as it was.
	unlikely = 0.05
	// doubtful is how many uses more a machine may have made than were seen.
	doubtful = 0.25
)

// look records uses and returns their weight in the shares, 1 if everything earlier is forgotten.
// had is the share of the first machine so far, now the number of new uses. The past is forgotten
// if one machine alone has made so many uses in a row that with its share this would be unlikely:
// the item is another machine's now.
func (s *sight) look(had, now float64, uses []Use) float64 {
	switch {
	case now == 0: // nothing is new
		if s.uses == 0 {
			return 1
		}
	case len(uses) > 1:
		s.run = 0
	case s.run == 0 || s.by != uses[0].Machine:
		s.run, s.by = 0, uses[0].Machine
		fallthrough
	default:
		run, seen := float64(s.run), float64(s.uses)
		s.run = float32(min(run+now, evidence))
		others := max(seen-run, 0) // before the run
		if others > 0 && math.Pow((max(had*seen-run, 0)+doubtful)/(others+1), run+now) < unlikely {
			s.uses = s.run
			return 1
		}
	}
	part := now / (float64(s.uses) + now)
	s.uses = float32(min(float64(s.uses)+now, evidence))
	return part
}

// insert adds a machine at a position of an item's list and returns the list. come is how many
// users the caller will add at most.
func (r *rates) insert(item, at, machine int32, come int) []user {
	if r.length[item] == r.room[item] {
		r.grow(item, come)
	}
	r.length[item]++
	users := r.of(item)
	copy(users[at+1:], users[at:])
	users[at] = user{machine: machine}
	return users
}

// grow moves an item's list to the end of the arena, with twice its room or room for come.
func (r *rates) grow(item int32, come int) {
	room := min(max(2*int(r.room[item]), come), math.MaxUint16)
	old := r.of(item)
	r.start[item], r.room[item] = int64(len(r.arena)), uint16(room)
	r.arena = append(r.arena, old...)
	r.arena = append(r.arena, make([]user, room-len(old))...)
}

const (
	// least is the fraction of an item's rate below which a user is forgotten.
	least = 1. / 1024
	// faint is the rate below which all users of an item are: no machine has used
	// it for some 70 times the length of the memory, and its rates would soon be
	// too small to be exact.
	faint = 1e-30
)

// fade multiplies all rates by keep. It reports whether the rates themselves were rewritten, with
// scale 1 again, which happens rarely; the caller then has to recompute what it has derived from
// them.
func (r *rates) fade(keep float64) bool {
	if r.scale *= keep; r.scale > 1e-12 {
		return false
	}
	for i := range r.arena {
		r.arena[i].rate *= float32(r.scale)
	}
	r.scale = 1
	r.compact()
	return true
}

// compact drops users that have not used an item for long, and closes the gaps in the arena.
func (r *rates) compact() {
	arena := make([]user, 0, len(r.arena)/2)
	for item := range r.start {
		users := r.of(int32(item))
		sum := float32(0)
		for _, u := range users {
			sum += u.rate
		}
		r.start[item] = int64(len(arena))
		for _, u := range users {
			if sum > faint && u.rate > least*sum {
				arena = append(arena, u)
			}
		}
		n := uint16(len(arena) - int(r.start[item]))
		r.length[item], r.room[item] = n, n
	}
	r.arena = arena
}
