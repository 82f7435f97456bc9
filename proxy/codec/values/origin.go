package values

// maxOrigins bounds the origins of links.
const maxOrigins = 4096

// origin is where processes of this host connect from, a network namespace as a rule,
// as long as links come from there. The listeners of some links do not know the job,
// since an agent opens them before the job begins. The listeners of other links of
// the same origin may know it, and messages to the scheduler show it. While links of
// several jobs are open, no link of the origin can be attributed to any of them; once
// all but one of these jobs are over, the links that are left are that one's.
type origin struct {
	links  int
	named  map[string]int // open links that have named a job, by job
	job    string         // the only one in named, now or at last; empty: there are several, or was none
	leaves bool           // a link leads to another host
}

// member is a link of an origin. Its codec's mutex guards it.
type member struct {
	codec  *Codec
	name   string
	origin *origin // nil: there are too many
	job    string  // that this link has named
}

// joinOrigin counts a link from an origin until its leave is called. leaves says that it
// leads to another host.
func (c *Codec) joinOrigin(name string, leaves bool) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &member{codec: c, name: name, origin: c.origins[name]}
	if m.origin == nil {
		// Its links then have the job that their own listener names, or none.
		if len(c.origins) >= maxOrigins {
			return m
		}
		m.origin = &origin{named: map[string]int{}}
		c.origins[name] = m.origin
	}
	m.origin.links++
	if leaves && !m.origin.leaves {
		m.origin.leaves = true
		c.named.Add(1)
	}
	return m
}

// leave ends the membership.
func (m *member) leave() {
	m.codec.mu.Lock()
	defer m.codec.mu.Unlock()
	if m.origin == nil {
		return
	}
	m.rename("")
	if m.origin.links--; m.origin.links == 0 {
		delete(m.codec.origins, m.name)
	}
}

// names records the job of the link, and thereby that of its origin. Links that do not know
// their job look it up again after that.
func (m *member) names(job string) {
	if job == "" {
		return
	}
	m.codec.mu.Lock()
	defer m.codec.mu.Unlock()
	if m.origin != nil && m.job != job {
		m.rename(job)
	}
}

// rename changes the job that the link names; the caller holds the codec's mutex.
func (m *member) rename(job string) {
	o := m.origin
	if m.job != "" {
		if o.named[m.job]--; o.named[m.job] == 0 {
			delete(o.named, m.job)
		}
	}
	if m.job = job; job != "" {
		o.named[job]++
	}
	before := o.job
	switch len(o.named) {
	case 0: // its other links outlive the one to the scheduler
	case 1:
		for o.job = range o.named {
		}
	default:
		o.job = ""
	}
	if o.job != before {
		m.codec.named.Add(1)
	}
}

// leavesHost reports whether an origin has, or had, links to other hosts.
func (c *Codec) leavesHost(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.origins[name]
	return o != nil && o.leaves
}

// jobOf returns the job of an origin, empty if it is not known.
func (c *Codec) jobOf(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.origins[name]; o != nil {
		return o.job
	}
	return ""
}
