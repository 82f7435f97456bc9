package values

import "github.com/psidecar/psidecar/internal/wire/pslite"

// leastNumbered is after how many commands in succession, each above the one before, they are
// taken for the numbers of steps. A job with tables comes back to one of them before, unless it
// has more.
const leastNumbered = 16

// commands tells whether the values of a message may meet what is remembered of earlier ones. A
// request's command (cmd, [pslite.Meta.Head]) is left to the job: to some it says in which of
// several tables a key is meant, to others it is the number of a step, and most do not use it.
//
//	one command ──others──► only the first one's values are remembered ──numbers──► all are
//
// What is remembered belongs to owner until commands are known to be numbers. The zero value has
// seen no message.
type commands struct {
	began, numbered bool
	owner, last     int32
	rising          int // commands in succession that were each above the one before
}

// remembers reports whether a message under a command may meet what is remembered, and notes the
// command.
func (c *commands) remembers(command int32) bool {
	switch {
	case !c.began:
		c.began, c.owner = true, command
	case command > c.last:
		c.rising++
		c.numbered = c.numbered || c.rising >= leastNumbered
	case command < c.last:
		c.rising = 0
	}
	c.last = command
	return c.numbered || command == c.owner
}

// belongs notes whose values are remembered, as whose has said, unless that is known.
func (c *commands) belongs(whose int64) {
	if owner := int32(whose - 1); !c.began && whose != 0 {
		*c = commands{began: true, owner: owner, last: owner}
	}
}

// whose returns the command whose values are remembered, plus one; 0: those of all are, or of none.
func (c *commands) whose() int64 {
	if !c.began || c.numbered {
		return 0
	}
	return int64(c.owner) + 1
}

// typed reports whether a message's command may name a table. Of values that are bytes it says
// of what type they are.
func typed(m *pslite.Message) bool {
	types := m.Meta.DataTypes
	return len(types) < 2 || types[1] != pslite.Char && types[1] != pslite.Other
}
