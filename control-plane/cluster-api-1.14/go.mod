// Pins Cluster API, whose custom resource definitions tests install; control-plane/peer takes them. Nothing of it is built.
module salvor.dev/control-plane/cluster-api-1.14

go 1.26.0

require sigs.k8s.io/cluster-api v1.14.0 // indirect
