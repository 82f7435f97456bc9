package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxName bounds the length of a name, without its tenant.
const maxName = 128

// checkName returns what is wrong with a name. A slash separates tenant and name, and a colon
// occurs in the addresses of schedulers, so a name has neither.
func checkName(name string) error {
	odd := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, odd) {
		return errors.New("want a name of 1 to " + strconv.Itoa(maxName) + " letters, digits, dots, dashes and underscores")
	}
	return nil
}

// A Source is where a name comes from. A later one is closer to the person who named the job,
// and takes precedence.
type Source int

// The sources.
const (
	Scheduler  Source = iota // its scheduler's address: nobody has named it
	Owner                    // the owner of the pod: a Job, a PyTorchJob, a StatefulSet
	Variables                // PSIDECAR_JOB
	Annotation               // psidecar.io/job
)

// String returns the word for a source in the protocol and in reports. A value out of range
// gets that of the nearest source.
func (s Source) String() string {
	return [...]string{"scheduler", "owner", "environment", "annotation"}[min(max(s, 0), Annotation)]
}

// ParseSource is the inverse of [Source.String]. Unknown texts, of later versions, become
// Scheduler.
func ParseSource(text string) Source {
	for s := Annotation; s > Scheduler; s-- {
		if s.String() == text {
			return s
		}
	}
	return Scheduler
}

// A Claim is the name that a process, or its pod, gives its job.
type Claim struct {
	// Tenant is the owner of the process: the pod's namespace or, outside Kubernetes, the user;
	// empty for root. Nobody can choose it.
	Tenant string
	Name   string // without the tenant
	From   Source
	Role   string // of the process in the job
	// Authority says that the process is the scheduler and listens at the job's address.
	Authority bool
}

// User returns the tenant of a process outside pods.
func User(uid uint32) string {
	if uid == 0 {
		return ""
	}
	return "uid:" + strconv.FormatUint(uint64(uid), 10)
}

// Check returns what is wrong with a claim that comes from another process.
func (c Claim) Check() error {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == '@' }
	if len(c.Tenant) > maxName || strings.ContainsFunc(c.Tenant, odd) {
		return errors.New("want a tenant of " + strconv.Itoa(maxName) + " characters or fewer, without a slash")
	}
	return checkName(c.Name)
}

// Qualified returns the name including the tenant. Names of different tenants never coincide.
func (c Claim) Qualified() string {
	if c.Tenant == "" {
		return c.Name
	}
	return c.Tenant + "/" + c.Name
}

// ClaimOf returns the claim of a process, with annotations of its pod first, then its
// environment, then the owner of its pod. ok is false if it makes none. Invalid names are
// skipped; Settings.Read reports them.
func ClaimOf(tenant, owner string, annotations, environment Settings, allowed Allowed) (c Claim, ok bool) {
	c.Tenant = tenant
	for _, s := range []struct {
		name string
		from Source
	}{{annotations[Job], Annotation}, {environment[Job], Variables}, {owner, Owner}} {
		// The owner comes from Kubernetes, not from the job, so it needs no permission.
		if s.from != Owner && !allowed[Job] || checkName(s.name) != nil {
			continue
		}
		c.Name, c.From = s.name, s.from
		return c, true
	}
	return c, false
}

// Best returns the claim that counts for a job. That of the scheduler comes first: any process
// may claim to belong to a job, but only one listens at its address. Then explicit names come
// before those of owners. Ties are broken in a fixed order, so that hosts agree.
func Best(claims []Claim) (Claim, bool) {
	if len(claims) == 0 {
		return Claim{}, false
	}
	return slices.MinFunc(claims, compareClaims), true
}

// compareClaims orders claims, the one that counts first.
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

// A Named is a job that may claim a name.
type Named struct {
	Scheduler string // its address, which tells jobs apart
	Claim     string // qualified; empty: none
	Since     int64  // when its processes were first seen; any unit
	Running   bool
}

// A Title is the name under which a job is shown.
type Title struct {
	Name string
	// Holder is the scheduler of the job that has the name which this one claims. This one's
	// title then has its scheduler's address appended. Empty: it has the name itself.
	Holder string
	// Current says that this job is the newest of those with its name, which are runs of the
	// same job.
	Current bool
}

// Assign gives titles to jobs. Of those that run and claim the same name, the first one has it;
// the others' titles have their scheduler's address appended until it has ended. Jobs that have
// ended keep the name beside the one that runs. It is a pure function, so agents and planner
// agree.
func Assign(all []Named) map[string]Title {
	all = slices.Clone(all)
	// The first to claim a name gets it, whatever the order in which the jobs were found.
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
			// The last one wins, since they are sorted by their beginning.
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

// Taken describes which job holds the name that a job claims.
func Taken(t Title, c Claim) string {
	return fmt.Sprintf("the job at %s started earlier and is also named %s: until it has ended, this one is named %s", t.Holder, c.Qualified(), t.Name)
}
