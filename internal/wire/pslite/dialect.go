package pslite

import "fmt"

// Dialect is a generation of PS-lite's meta frame. Later generations of dmlc's have
// smaller numbers, by which newer compares them.
type Dialect uint8

// The dialects. Nothing on the wire names them; see [Detector].
const (
	Unknown Dialect = iota
	// DMLC is dmlc/ps-lite since September 2019: a protobuf with fields pull (12) and,
	// a month later, priority (13).
	DMLC
	// DMLC2018 is dmlc/ps-lite before that: customer_id (10) and data_size (11), but no
	// pull; a data message that is no push is a pull.
	DMLC2018
	// DMLC2017 is dmlc/ps-lite of 2017 and before: field 7 is customer_id, there is no
	// app_id, and fields 10 to 13 do not exist.
	DMLC2017
	// BytePSRaw is bytedance/ps-lite: a C struct, little endian, aligned as on 64-bit
	// machines.
	BytePSRaw
)

// String returns the dialect's short name.
func (d Dialect) String() string {
	switch d {
	case DMLC:
		return "dmlc"
	case DMLC2018:
		return "dmlc-2018"
	case DMLC2017:
		return "dmlc-2017"
	case BytePSRaw:
		return "byteps"
	}
	return "unknown"
}

// Certainty says how sure a [Detector] is.
type Certainty uint8

const (
	// None: no message was seen.
	None Certainty = iota
	// Presumed: everything seen fits, but a later message may show a newer generation.
	// PS-lite's own programs never do that, since they write all fields of their
	// generation into every message.
	Presumed
	// Certain: proven by a field that only this dialect has, or by 16 messages that
	// agree.
	Certain
)

// enough is how many messages that agree make a presumption certain.
const enough = 16

// Detector finds out which dialect one sender speaks, from its messages. The zero value
// knows nothing yet. Use one for each direction of a connection, or one for a job,
// whose nodes all speak one dialect. It is not safe for concurrent use.
//
// A dialect can be replaced by a newer one until it is certain, never by an older one:
// an old program cannot write new fields, but a new one may leave fields out.
type Detector struct {
	dialect Dialect
	agreed  int
	certain bool
	decoded uint64
}

// Decoded returns how many meta frames were given to Decode.
func (d *Detector) Decoded() uint64 { return d.decoded }

// Dialect returns the best guess so far.
func (d *Detector) Dialect() (Dialect, Certainty) {
	switch {
	case d.dialect == Unknown:
		return Unknown, None
	case d.certain:
		return d.dialect, Certain
	}
	return d.dialect, Presumed
}

// Decode reads a meta frame into m and returns the dialect that it is in. A presumption
// that the frame disproves is replaced; once certain, a frame in another dialect is an
// error. So is, as a [*ForkError], a frame that no dialect's program writes.
func (d *Detector) Decode(b []byte, m *Meta) (Dialect, error) {
	d.decoded++
	if len(b) == 0 { // a valid protobuf, but no program's message
		return Unknown, forkErrors[NoFork]
	}
	if d.certain {
		return d.dialect, m.decodeKnown(b, d.dialect)
	}
	found, err := Detect(b, m)
	if err != nil {
		return Unknown, err
	}
	switch {
	// A newer generation than was presumed. The messages before were read alike in
	// both, except for the fields that they did not have.
	case d.dialect == Unknown, newer(found, d.dialect):
		d.dialect, d.agreed = found, 0
	// The frame lacks fields that its sender has shown before. Read it in the newer
	// dialect, in which their absence means their default.
	case found != d.dialect && newer(d.dialect, found):
		// A sender that leaves out fields with default values.
		found = d.dialect
		if err := m.Decode(b, found); err != nil {
			return Unknown, err
		}
	case found != d.dialect:
		return Unknown, fmt.Errorf("pslite: a meta frame in dialect %s where %s was spoken", found, d.dialect)
	}
	d.agreed++
	// DMLC is the newest: nothing can replace it.
	d.certain = found == DMLC || d.agreed >= enough
	return found, nil
}

// newer reports whether a is a later protobuf generation than b.
func newer(a, b Dialect) bool {
	return a != BytePSRaw && b != BytePSRaw && a < b
}

// decodeKnown is Decode for a sender whose dialect is certain. Data messages may have
// any form, since a fork's and ps-lite's own are the same in some, but a control
// message must be one of the dialect's: forks gave the commands other numbers, and a
// barrier taken for an acknowledgement would mislead everything that follows the job.
func (m *Meta) decodeKnown(b []byte, d Dialect) error {
	if d == BytePSRaw {
		return m.decodeBytePS(b)
	}
	seen, err := m.decodeProto(b, d)
	if err == nil && seen&(1<<fieldControl) != 0 && !m.Control.own() {
		return forkErrors[forkOf(b)]
	}
	return err
}

// Detect reads a single meta frame into m by what it alone shows: a protobuf whose
// fields tell the generation, or BytePS's struct. Only the very forms that programs of
// these dialects write are accepted: forks of PS-lite use the same field numbers for
// other things, and what one of them says must not be taken for what another would mean
// by it. Anything else is a [*ForkError].
func Detect(b []byte, m *Meta) (Dialect, error) {
	seen, err := m.decodeProto(b, DMLC)
	if err == nil && m.own(seen) {
		switch {
		case seen&(1<<fieldPull|1<<fieldPriority) != 0:
			return DMLC, nil
		case seen&(1<<fieldCustomerID|1<<fieldDataSize) != 0:
			_, err = m.decodeProto(b, DMLC2018)
			return DMLC2018, err
		}
		_, err = m.decodeProto(b, DMLC2017)
		return DMLC2017, err
	}
	// The counts of BytePS's struct have to add up to its length, so hardly anything
	// else passes for it.
	if m.decodeBytePS(b) == nil {
		return BytePSRaw, nil
	}
	return Unknown, forkErrors[forkOf(b)]
}

// own reports whether m, in which these fields were seen, has a form that a generation
// of dmlc/ps-lite writes: the fields that all of them write, those of later ones in the
// order in which they were introduced, nothing else.
func (m *Meta) own(seen uint32) bool {
	// The fields of the first generation that are always written. Later generations
	// added to these and dropped none.
	const always = 1<<fieldHead | 1<<fieldRequest | 1<<fieldPush | 1<<fieldSimpleApp
	const filled = 1<<fieldBody | 1<<fieldControl | 1<<fieldDataType // never written empty
	return m.raw == nil && len(m.unknown) == 0 && seen&always == always && inOrder(seen) &&
		m.flips&filled == 0 && (m.Control.Cmd == NoCommand || m.Control.own())
}

// inOrder reports whether no field is present without the one that was introduced
// before it. Data_size may be left out: of the newest generation only some programs
// write it.
func inOrder(seen uint32) bool {
	has := func(field uint32) bool { return seen&(1<<field) != 0 }
	return (has(fieldCustomerID) || !has(fieldDataSize) && !has(fieldPull)) && (has(fieldPull) || !has(fieldPriority))
}

// own reports whether c is what dmlc/ps-lite writes for its command: a group with
// BARRIER, a signature with ACK, and whole nodes.
func (c *Control) own() bool {
	if c.Cmd <= NoCommand || c.Cmd > Heartbeat || c.flips != 0 || len(c.unknown) > 0 {
		return false
	}
	const later = 1<<fieldIsRecovery | 1<<fieldNodeCustomerID // than the first generation
	for i := range c.Nodes {
		if n := &c.Nodes[i]; len(n.unknown) > 0 || n.flips&^later != 0 {
			return false
		}
	}
	return true
}

// Plausible reports whether b is a meta frame just as PS-lite's own programs write it:
// all fields of its generation, in order, nothing unknown, and types for as many data
// frames as follow (-1: not known). It serves to find messages in a stream whose
// beginning was missed; random bytes hardly ever pass. m is overwritten.
func Plausible(b []byte, dataFrames int, m *Meta) (Dialect, bool) {
	d, err := Detect(b, m)
	if err != nil || dataFrames >= 0 && len(m.DataTypes) != dataFrames {
		return Unknown, false
	}
	if d == BytePSRaw {
		return d, m.AppID >= 0 && m.Timestamp >= 0
	}
	return d, true
}
