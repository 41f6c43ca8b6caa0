; Sizes that take a good part of a second.
(define small 0)
