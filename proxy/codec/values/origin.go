package values

// maxOrigins bounds the origins of links.
const maxOrigins = 4096

// origin is where processes of this host connect from, a network namespace as a rule,
// as long as links come from there. The listeners of some links do not know the job,
// since an agent opens them before the job begins. The listeners of other links of
// the same origin may know it, and messages to the scheduler show it. If several jobs
// connect from one origin, no link of it can be attributed to either, and none of
// them counts.
type origin struct {
	links   int
	job     string
	several bool // more than one job was named
	leaves  bool // a link leads to another host
}

// joinOrigin counts a link from an origin until the function that it returns is called.
// leaves says that it leads to another host.
func (c *Codec) joinOrigin(name string, leaves bool) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.origins[name]
	if o == nil {
		// Its links then have the job that their own listener names, or none.
		if len(c.origins) >= maxOrigins {
			return func() {}
		}
		o = &origin{}
		c.origins[name] = o
	}
	o.links++
	if leaves && !o.leaves {
		o.leaves = true
		c.named.Add(1)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if o.links--; o.links == 0 {
			delete(c.origins, name)
		}
	}
}

// names records the job of an origin. Links that do not know their job look it up again
// after that.
func (c *Codec) names(name, job string) {
	if job == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.origins[name]; o != nil && o.job != job {
		o.several = o.job != ""
		o.job = job
		c.named.Add(1)
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
	if o := c.origins[name]; o != nil && !o.several {
		return o.job
	}
	return ""
}
