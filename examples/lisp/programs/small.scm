; Sizes that take milliseconds.
(define small 1)
