package discover

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"

	"github.com/psidecar/psidecar/internal/policy"
)

// Said returns what a pod of this node says of its job: annotations, namespace and, once the
// API server has answered, its owner. false if the pod is not known.
func (p *Pods) Said(uid string) (policy.Pod, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, ok := p.pods[uid]
	if !ok {
		return policy.Pod{}, false
	}
	s := k.said
	s.Wrong = slices.Clone(s.Wrong)
	return s, true
}

// Bounds of the background work for pods.
const (
	// maxOwners is how many levels of ownership are followed. The pods of a CronJob have two
	// above them; custom controllers may add more.
	maxOwners = 8
	// askWithin bounds each request to the API server.
	askWithin = 10 * time.Second
)

// ask queues a pod whose owner is unknown or whose annotations are wrong. Requests to the API
// server are made by work, so that informers' handlers never block. Before Run it does nothing.
func (p *Pods) ask(uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue != nil {
		p.queue.Add(uid)
	}
}

// begin creates the work queue. Failed pods are retried after 200 ms, doubling up to a minute.
// The queue merges repeated entries of one pod.
func (p *Pods) begin() workqueue.TypedRateLimitingInterface[string] {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, time.Minute))
	return p.queue
}

// work resolves queued pods, one at a time, until ctx ends. One pod's failure is retried later
// and does not hold up the others.
func (p *Pods) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) {
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	for {
		uid, over := queue.Get()
		if over {
			return
		}
		if err := p.resolveOwner(ctx, uid); err != nil && ctx.Err() == nil {
			slog.Debug("cannot read a pod's owners; retrying", "pod", uid, "error", err)
			queue.AddRateLimited(uid)
		} else {
			queue.Forget(uid)
		}
		queue.Done(uid)
	}
}

// resolveOwner finds the top owner of a pod, unless it is known, and writes events for its
// invalid annotations. The lock is not held during requests, so the pod is looked up again
// before the result is stored.
func (p *Pods) resolveOwner(ctx context.Context, uid string) error {
	p.mu.Lock()
	k, there := p.pods[uid]
	p.mu.Unlock()
	if !there {
		return nil // it is no more
	}
	if k.controller != nil && k.said.Owner == "" {
		owner, err := p.top(ctx, k.Namespace, *k.controller)
		if err != nil {
			return err
		}
		p.mu.Lock()
		if now, there := p.pods[uid]; there {
			now.said.Owner = owner
			p.pods[uid] = now
		}
		p.mu.Unlock()
	}
	return p.writeEvents(ctx, k)
}

// top follows controller references upwards and returns the name of the last one that can be
// read. A missing permission or a deleted owner ends the walk without an error, since retrying
// would not help. Only metadata is requested, so permission for one kind of object costs no
// access to its contents.
func (p *Pods) top(ctx context.Context, namespace string, owner metav1.OwnerReference) (string, error) {
	for range maxOwners {
		group, err := schema.ParseGroupVersion(owner.APIVersion)
		if err != nil {
			return owner.Name, nil
		}
		// Guessing the plural saves a discovery request for each kind. A wrong guess yields
		// NotFound and ends the walk at this owner.
		resource, _ := meta.UnsafeGuessKindToResource(group.WithKind(owner.Kind))
		asking, cancel := context.WithTimeout(ctx, askWithin)
		object, err := p.objects.Resource(resource).Namespace(namespace).Get(asking, owner.Name, metav1.GetOptions{})
		cancel()
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return owner.Name, nil
		case err != nil:
			return "", fmt.Errorf("reading %s %s/%s: %w", owner.Kind, namespace, owner.Name, err)
		case object.UID != owner.UID:
			return owner.Name, nil // another of that name
		}
		above := metav1.GetControllerOf(object)
		if above == nil {
			return owner.Name, nil
		}
		owner = *above
	}
	return owner.Name, nil
}
