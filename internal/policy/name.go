package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxName is how many characters a name has at most, without its tenant.
const maxName = 128

// checkName returns the fault of a name. It has no slash, which is between tenant
// and name, and no colon, which is in the address of a scheduler.
func checkName(name string) error {
	odd := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, odd) {
		return errors.New("want a name of 1 to " + strconv.Itoa(maxName) + " letters, digits, dots, dashes and underscores")
	}
	return nil
}

// A Source is the origin of a name; a later one is nearer to the person that named
// the job.
type Source int

// The sources.
const (
	Scheduler  Source = iota // its address: nobody has named it
	Owner                    // what owns the pod: a Job, a PyTorchJob, a StatefulSet
	Variables                // PSIDECAR_JOB
	Annotation               // psidecar.io/job
)

func (s Source) String() string {
	return [...]string{"scheduler", "owner", "environment", "annotation"}[min(max(s, 0), Annotation)]
}

// ParseSource is the reverse of [Source.String]; what it does not know is Scheduler.
func ParseSource(text string) Source {
	for s := Annotation; s > Scheduler; s-- {
		if s.String() == text {
			return s
		}
	}
	return Scheduler
}

// A Claim is what a process says, or its pod does, that its job is called.
type Claim struct {
	// Tenant is whose the process is: the pod's namespace or, outside of
	// Kubernetes, the user, empty for root. Nobody chooses his own.
	Tenant string
	Name   string // without the tenant
	From   Source
	Role   string // of the process in the job
	// Authority: it is the scheduler, and listens at the job's address.
	Authority bool
}

// Tenant of a process that is in no pod.
func User(uid uint32) string {
	if uid == 0 {
		return ""
	}
	return "uid:" + strconv.FormatUint(uint64(uid), 10)
}

// Check returns the fault of a claim that another process has made.
func (c Claim) Check() error {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == '@' }
	if len(c.Tenant) > maxName || strings.ContainsFunc(c.Tenant, odd) {
		return errors.New("want a tenant of " + strconv.Itoa(maxName) + " characters or fewer, without a slash")
	}
	return checkName(c.Name)
}

// Qualified is the name as all know it: two tenants' never are the same.
func (c Claim) Qualified() string {
	if c.Tenant == "" {
		return c.Name
	}
	return c.Tenant + "/" + c.Name
}

// ClaimOf returns the claim of a process: what its pod's annotations say comes before
// its environment, and that before the owner of its pod. False: it makes none.
func ClaimOf(tenant, owner string, annotations, environment Settings, allowed Allowed) (c Claim, ok bool) {
	c.Tenant = tenant
	for _, s := range []struct {
		name string
		from Source
	}{{annotations[Job], Annotation}, {environment[Job], Variables}, {owner, Owner}} {
		if s.from != Owner && !allowed[Job] || checkName(s.name) != nil {
			continue
		}
		c.Name, c.From = s.name, s.from
		return c, true
	}
	return c, false
}

// Best returns the claim that names a job: that of its scheduler where it is here,
// since anybody may say that he belongs to a job, but only one listens at its address;
// else what was said before what owns, and of equals always the same.
func Best(claims []Claim) (Claim, bool) {
	if len(claims) == 0 {
		return Claim{}, false
	}
	return slices.MinFunc(claims, compareClaims), true
}

func compareClaims(a, b Claim) int {
	less := func(first bool) int {
		if first {
			return -1
		}
		return 1
	}
	switch {
	case a.Authority != b.Authority:
		return less(a.Authority)
	case a.From != b.From:
		return less(a.From > b.From)
	}
	return cmp.Or(strings.Compare(a.Role, b.Role), strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Name, b.Name))
}

// A Named is a job that claims a name.
type Named struct {
	Scheduler string // its address, which tells jobs apart
	Claim     string // qualified; empty: none
	Since     int64  // when its processes were first seen; any unit
	Running   bool
}

// A Title is what a job is called.
type Title struct {
	Name string
	// Holder is the scheduler of the job that has the name that this one claims, so
	// that its own has its address appended; empty: it has it itself.
	Holder string
	// Current: of the jobs of this name, which are runs of one, it is the newest.
	Current bool
}

// Assign says what jobs are called. Of those that run and claim one name the first
// has it; the others' have their scheduler's address appended, until it has ended.
// Those that have ended keep the name beside the one that runs.
func Assign(all []Named) map[string]Title {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Named) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.Scheduler, b.Scheduler))
	})
	titles := make(map[string]Title, len(all))
	holders := map[string]string{} // of names, by those that run
	newest := map[string]string{}
	for _, j := range all {
		if j.Claim == "" {
			titles[j.Scheduler] = Title{Name: j.Scheduler, Current: true}
			continue
		}
		if !j.Running {
			newest[j.Claim] = j.Scheduler
		} else if holders[j.Claim] == "" {
			holders[j.Claim] = j.Scheduler
		}
	}
	for _, j := range all {
		if j.Claim == "" {
			continue
		}
		holder := holders[j.Claim]
		switch {
		case !j.Running:
			titles[j.Scheduler] = Title{Name: j.Claim, Current: holder == "" && newest[j.Claim] == j.Scheduler}
		case holder == j.Scheduler:
			titles[j.Scheduler] = Title{Name: j.Claim, Current: true}
		default:
			titles[j.Scheduler] = Title{Name: j.Claim + "@" + j.Scheduler, Holder: holder, Current: true}
		}
	}
	return titles
}

// Taken names the holder of the name that a job with that title and claim wants and
// does not have.
func Taken(t Title, c Claim) string {
	return fmt.Sprintf("the job at %s, which began before and runs, is called %s too: until it has ended this one is %s", t.Holder, c.Qualified(), t.Name)
}
