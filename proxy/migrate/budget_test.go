package migrate

import "fmt"

// budget is what can still happen.
type budget struct {
	Moves  uint8 // of any key, to the server where it is not
	Loss   uint8 // of any message
	Repeat uint8 // a host's timers run out early
	Crash  uint8 // of a proxy or the planner
	Expire uint8 // moves that take too long
	Over   uint8 // a job is over on a host, or seems so
	Lose   uint8 // the planner is killed, and its store is lost
	Past   uint8 // connections of a host whose proxy is dead are made past it
}

func (b budget) String() string {
	s := fmt.Sprintf("%d moves, %d lost, %d repeated, %d crashes, %d expire", b.Moves, b.Loss, b.Repeat, b.Crash, b.Expire)
	if b.Over > 0 {
		s += fmt.Sprintf(", %d over", b.Over)
	}
	if b.Lose > 0 {
		s += fmt.Sprintf(", %d stores lost", b.Lose)
	}
	if b.Past > 0 {
		s += fmt.Sprintf(", %d go past", b.Past)
	}
	return s
}

func (b *budget) counts() [8]uint8 {
	return [...]uint8{b.Moves, b.Loss, b.Repeat, b.Crash, b.Expire, b.Over, b.Lose, b.Past}
}

// cuts reports whether all messages to or from a host can be lost at once.
func (b *budget) cuts() bool { return b.Crash+b.Over > 0 }

// covers reports whether all that can happen with another budget can with this.
func (b *budget) covers(other budget) bool {
	mine := b.counts()
	for i, n := range other.counts() {
		if mine[i] < n {
			return false
		}
	}
	return true
}

// smaller returns all budgets that this one covers, each behind those that cover
// it.
func (b *budget) smaller() []budget {
	all := []budget{*b}
	for _, field := range []func(*budget) *uint8{
		func(b *budget) *uint8 { return &b.Past },
		func(b *budget) *uint8 { return &b.Lose },
		func(b *budget) *uint8 { return &b.Over },
		func(b *budget) *uint8 { return &b.Expire },
		func(b *budget) *uint8 { return &b.Crash },
		func(b *budget) *uint8 { return &b.Repeat },
		func(b *budget) *uint8 { return &b.Loss },
		func(b *budget) *uint8 { return &b.Moves },
	} {
		same := all
		all = nil
		for n := int(*field(b)); n >= 0; n-- {
			for _, x := range same {
				*field(&x) = uint8(n)
				all = append(all, x)
			}
		}
	}
	return all
}
