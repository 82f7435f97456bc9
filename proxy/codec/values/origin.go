package values

// maxOrigins bounds the origins of links.
const maxOrigins = 4096

// origin is where processes of this host connect from, while links come from
// there. Listeners of some links do not know the job: an agent opens them before
// it begins. What job that is other links' listeners say, or its nodes by what
// they tell the scheduler. Of two jobs at a time nobody can say which such a link
// is of, so it counts for none.
type origin struct {
	links   int
	job     string
	several bool
}

// joinOrigin notes a link from an origin, and leaves again with the function that it
// returns.
func (c *Codec) joinOrigin(name string) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.origins[name]
	if o == nil {
		if len(c.origins) >= maxOrigins {
			return func() {}
		}
		o = &origin{}
		c.origins[name] = o
	}
	o.links++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if o.links--; o.links == 0 {
			delete(c.origins, name)
		}
	}
}

// names notes the job of an origin.
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

// jobOf is the job of an origin, empty where it is not known.
func (c *Codec) jobOf(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.origins[name]; o != nil && !o.several {
		return o.job
	}
	return ""
}
